"""From a config to a running LitServer; `python litspec/serve.py --config …` is what a Studio deployment runs.

The main process loads no model: it checks what can be checked, starts LitServe's processes, prints the address, and
sees to it that Ctrl-C, SIGTERM or the death of a worker ends them all.
"""

from __future__ import annotations

import os
import sys

if __name__ == "__main__" and not __package__:
    # As a script, this folder stands first on the path and would shadow installed modules: its parent is meant.
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

import contextlib
import logging
import multiprocessing.connection
import signal
import socket
import threading
import time
from argparse import ArgumentError
from collections.abc import AsyncIterator, Sequence
from typing import Any

from jsonargparse import ArgumentParser
from litserve import LitServer
from litserve.connector import check_cuda_with_nvidia_smi
from litserve.utils import WorkerSetupStatus

from litspec.api.config import ConfigError, ServeConfig
from litspec.api.config_sources import add_config_flags, given_flags, load_config
from litspec.api.litapi import EXIT_FAILURE, EXIT_MISTAKE, SpecLitAPI
from litspec.api.processes import end_children, raise_on_stop_signals, shielded_from_interrupts

GRACE_S = 5  # from the signal to the end of the last process that answers requests
MAX_BODY_BYTES = 32 * 1024 * 1024


class ServerError(RuntimeError):
    """The server cannot start or go on; `exit_code` is what the process ends with."""

    def __init__(self, message: str, *, exit_code: int = EXIT_FAILURE) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class SpecLitServer(LitServer):
    """LitServer that notices the end of its processes and ends with them (LitServe would wait, or orphan some)."""

    lit_api: SpecLitAPI
    failure: ServerError | None = None
    _is_stopping = False

    def _init_manager(self, num_api_servers: int) -> Any:
        manager: Any = super()._init_manager(num_api_servers)
        self._manager_pid = manager._process.pid
        return manager

    def launch_inference_worker(self, lit_api: Any) -> list[Any]:
        """Start the workers, deaf to Ctrl-C: the main process ends them."""
        with shielded_from_interrupts():
            workers = super().launch_inference_worker(lit_api)
        lit_api.doors.watch([worker.pid for worker in workers])
        return workers

    def verify_worker_status(self) -> None:
        """Wait until a worker has loaded its model; raise ServerError if one ends instead."""
        while not any(status == WorkerSetupStatus.READY for status in self.workers_setup_status.values()):
            for worker in self.inference_workers:
                if worker.exitcode is not None:
                    raise _process_ended(worker.exitcode, "while it loaded the model")
            time.sleep(0.05)

    @contextlib.asynccontextmanager
    async def lifespan(self, app: Any) -> AsyncIterator[None]:
        """Let the doors watch the other processes, in each API process."""
        async with super().lifespan(app):
            self.lit_api.doors.start()
            yield
        if self.lit_api.doors.is_orphaned:  # the workers notice by themselves, the manager does not
            os.kill(self._manager_pid, signal.SIGTERM)

    def _start_server(self, port: int, *args: Any, **kwargs: Any) -> Any:
        workers = super()._start_server(port, *args, **kwargs)
        config = self.lit_api.config
        host = f"[{config.host}]" if ":" in config.host else config.host
        _wait_until_open(config)
        print(f"litspec: serving {config.name} on http://{host}:{port} (Ctrl-C ends it)", flush=True)
        return workers

    def _start_worker_monitoring(self, manager: Any, uvicorn_workers: dict[Any, Any]) -> None:
        processes = [*self.inference_workers, *uvicorn_workers.values()]

        def watch() -> None:
            multiprocessing.connection.wait([process.sentinel for process in processes])
            if self._is_stopping:
                return
            ended = next((process for process in processes if process.exitcode is not None), None)
            self.failure = _process_ended(ended.exitcode if ended else None, "while it served")
            assert self._shutdown_event is not None
            with contextlib.suppress(EOFError, OSError):  # the event lives in the manager, which may be gone too
                self._shutdown_event.set()

        threading.Thread(target=watch, name="watch-processes", daemon=True).start()

    def _perform_graceful_shutdown(self, *args: Any, **kwargs: Any) -> None:
        self._is_stopping = True
        self.lit_api.doors.stop()
        super()._perform_graceful_shutdown(*args, **kwargs)


def build_server(config: ServeConfig, lit_api: SpecLitAPI | None = None) -> SpecLitServer:
    """Build the server; nothing is started, downloaded or loaded yet.

    Args:
        lit_api: what serves; by default a SpecLitAPI of the config.
    """
    accelerator, devices = _pick_devices(config.device)
    server = SpecLitServer(
        lit_api or SpecLitAPI(config),
        accelerator=accelerator,
        devices=devices,
        workers_per_device=config.workers_per_device,
        timeout=False if config.timeout is None else config.timeout,
        max_payload_size=MAX_BODY_BYTES,
        model_metadata={"name": config.name, "draft": config.draft or "none"},
    )
    server.uvicorn_graceful_timeout = GRACE_S
    return server


def run(config: ServeConfig, lit_api: SpecLitAPI | None = None) -> int:
    """Serve until Ctrl-C or SIGTERM; return the exit code: 0, 2 for a user's mistake, 1 for any other failure."""
    server = None
    raise_on_stop_signals()
    logging.getLogger("uvicorn.error").addFilter(_is_not_premature)
    try:
        if lit_api is None:
            _check_models(config)
        _check_port(config)
        server = build_server(config, lit_api)
        server.run(
            host=config.host,
            port=config.port,
            num_api_servers=1,
            log_level=config.log_level,
            generate_client_file=False,
        )
        if server.failure is not None:
            raise server.failure
    except KeyboardInterrupt:
        return 0
    except ServerError as error:
        return _say_error(str(error), error.exit_code)
    except ValueError as error:
        return _say_error(str(error), EXIT_MISTAKE)
    finally:
        end_children()
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Read flags, environment and file, and serve."""
    parser = ArgumentParser(description="Serve a model over HTTP.", exit_on_error=False, allow_abbrev=False)
    add_config_flags(parser, ServeConfig)
    try:
        namespace = parser.parse_args(argv)
        config = load_config(getattr(namespace, "config", None), ServeConfig, given_flags(namespace, ServeConfig))
    except (ArgumentError, ConfigError) as error:
        return _say_error(str(error).strip(), EXIT_MISTAKE)
    return run(config)


def _is_not_premature(record: logging.LogRecord) -> bool:
    """Drop uvicorn's word that it runs: it comes when the socket is bound, long before the model is loaded."""
    return not record.getMessage().startswith("Uvicorn running on")


def _say_error(message: str, exit_code: int) -> int:
    if message:
        print(f"litspec: error: {message}", file=sys.stderr, flush=True)
    return exit_code


def _process_ended(exit_code: int | None, when: str) -> ServerError:
    """Return the error for a process that ended by itself; one with an exit code has said why."""
    if exit_code is not None and exit_code > 0:
        return ServerError("", exit_code=exit_code)
    how = f"was ended by signal {-exit_code} (9 may mean too little memory)" if exit_code else "ended"
    return ServerError(f"a process of the server {how} {when}; the server ends")


def _check_models(config: ServeConfig) -> None:
    """Find (or download) the models here, where the user sees the progress; ValueError if there is none."""
    for name in (config.model, config.draft or "none"):
        if name not in ("debug", "none", "ngram") and not name.startswith("early-exit:"):
            from litspec.model.source import resolve_model

            resolve_model(name)


def _check_port(config: ServeConfig) -> None:
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((config.host, config.port))
        except OSError as error:
            message = f"port {config.port} on {config.host} cannot be opened ({error.strerror}); give another --port"
            raise ServerError(message, exit_code=EXIT_MISTAKE) from None


def _wait_until_open(config: ServeConfig) -> None:
    """Wait until the port takes connections, some seconds at most: what is printed then is true."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(config.host, config.host)
    for _ in range(100):
        with contextlib.suppress(OSError), socket.create_connection((host, config.port), timeout=1.0):
            return
        time.sleep(0.05)


def _pick_devices(device: str) -> tuple[Any, Any]:
    """Return LitServe's accelerator and devices; "auto" and "cuda" mean every GPU that there is."""
    kind, _, index = device.partition(":")
    if index:
        return kind, [int(index)]
    if kind == "auto":
        kind = "cuda" if check_cuda_with_nvidia_smi() else "cpu"
    return kind, "auto"


if __name__ == "__main__":
    sys.exit(main())
