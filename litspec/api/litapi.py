"""SpecLitAPI: the LitAPI that LitServe starts in each worker, with litspec's own loop and doors.

It does two things: it says what LitServe needs to know before any model is loaded, and it loads the LLM in the worker.
Prompts never pass through its predict: the loop takes them from the queue to the engine.
"""

from __future__ import annotations

import os
import sys
import traceback
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from litserve import LitAPI

from litspec.api.config import ServeConfig
from litspec.api.description import one_line
from litspec.api.loop import EngineLoop
from litspec.api.processes import follow_parent
from litspec.api.spec import DoorSpec

if TYPE_CHECKING:
    from litspec.api.llm import LLM

EXIT_MISTAKE = 2  # a user's mistake: an unknown model, a broken checkpoint, settings that do not fit together
EXIT_FAILURE = 1


class SpecLitAPI(LitAPI):
    """Serves one LLM.

    Args:
        config: what to load and how to serve it.
    """

    llm: LLM

    def __init__(self, config: ServeConfig) -> None:
        self.config = config
        super().__init__(
            max_batch_size=config.max_batch_size,
            batch_timeout=config.batch_timeout,
            loop=EngineLoop(),
            spec=DoorSpec(timeout=config.timeout),
        )

    @property
    def doors(self) -> DoorSpec:
        """The spec that owns the HTTP doors."""
        assert isinstance(self.spec, DoorSpec)
        return self.spec

    def setup(self, device: Any) -> None:
        """Load the model, in the worker; if that fails, say so once and end the worker with a telling exit code."""
        follow_parent()
        try:
            self.llm = self.load_llm(device[0] if isinstance(device, list) else device)
        except (ValueError, OSError) as error:
            print(f"litspec: error: {error}", file=sys.stderr, flush=True)
            raise SystemExit(EXIT_MISTAKE) from None
        except Exception:
            traceback.print_exc()
            print(f"litspec: error: {self.config.model} could not be loaded", file=sys.stderr, flush=True)
            raise SystemExit(EXIT_FAILURE) from None
        print(f"litspec: worker {os.environ['LITSERVE_WORKER_ID']}: {one_line(self.llm.describe())}", flush=True)

    def load_llm(self, device: str) -> LLM:
        """Load what the config names onto the device that LitServe gave this worker."""
        from litspec.api.llm import LLM  # brings torch: only workers need it

        device = device if device.startswith("cuda") else device.partition(":")[0]  # LitServe says mps:0
        llm = LLM.load_cold(replace(self.config, device=device))
        llm.engine.warm_up()
        return llm

    def health(self) -> bool:
        """Return whether all workers live; asked in an API process, for /health."""
        return self.doors.is_healthy
