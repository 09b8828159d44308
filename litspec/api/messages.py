"""What crosses between an API process and a worker: orders one way, events the other.

Everything here is small, immutable and picklable. An order is answered by at most one `Started`, any number of `Text`
(only if it streams) and exactly one last event: `Done` or `Failure`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from litspec.engine.params import SamplingParams


class Order(NamedTuple):
    """What a client asks for: text, token ids or chat messages; `stream` says whether text is wanted as it comes."""

    prompt: str | list[int] | list[dict[str, Any]]
    params: SamplingParams
    stream: bool = False


class Started(NamedTuple):
    """A worker has taken the order off the queue."""

    worker_id: int


class Text(NamedTuple):
    """Text that has become certain."""

    text: str


class Done(NamedTuple):
    """The whole answer, as `Completion.to_dict` gives it."""

    completion: dict[str, Any]


class Failure(NamedTuple):
    """Why there is no answer, with the HTTP status that says so."""

    status: int
    message: str
    param: str | None = None
    code: str | None = None

    def body(self) -> dict[str, Any]:
        """Return the JSON body of an error, in OpenAI's form."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


Event = Started | Text | Done | Failure


class RequestError(Exception):
    """A request that cannot be carried out; carries the Failure that the client gets."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure
