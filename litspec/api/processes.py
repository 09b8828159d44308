"""What keeps the server's processes from outliving each other.

The server is a main process, a manager, API processes (forked) and workers (spawned). Ctrl-C and SIGTERM are heard by
the main process, which ends the others; a `Lifeline` tells API processes that it is about to, or that it is gone.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from multiprocessing import resource_tracker
from types import FrameType


class Lifeline:
    """A pipe whose write end only the main process holds: its end of file says that the server is going down."""

    def __init__(self) -> None:
        self.read_end, self._write_end = os.pipe()
        self._owner = os.getpid()

    def cut(self) -> None:
        """Tell everybody. In a forked process: let go of the copy, which would hold the line."""
        if self._write_end >= 0:
            os.close(self._write_end)
            self._write_end = -1

    def owner_is_gone(self) -> bool:
        """Whether the main process has ended (asked in a child of it)."""
        return os.getppid() != self._owner


def raise_on_stop_signals() -> None:
    """Let SIGINT and SIGTERM raise KeyboardInterrupt in this process, and do in its forked children what they should.

    A forked child inherits the handler: there SIGTERM ends it and SIGINT, which a terminal sends to every process of
    the group, is left to this one.
    """
    owner = os.getpid()

    def stop(signum: int, _: FrameType | None) -> None:
        if os.getpid() == owner:
            raise KeyboardInterrupt
        if signum == signal.SIGTERM:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)

    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGTERM, stop)


@contextlib.contextmanager
def shielded_from_interrupts() -> Iterator[None]:
    """Start processes that never see SIGINT, not even while they import: they inherit the blocked signal."""
    resource_tracker.ensure_running()  # it would unblock the signal if it were started in between
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def follow_parent() -> None:
    """Leave Ctrl-C to the parent of this (spawned) process, and end with it, however it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def wait() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=wait, name="follow-parent", daemon=True).start()


def end_children(*, grace_s: float = 5.0) -> None:
    """End what this process has started: by SIGTERM, after the grace time by SIGKILL."""
    children = multiprocessing.active_children()
    for child in children:
        child.terminate()
    for child in children:
        child.join(grace_s)
        if child.is_alive():
            child.kill()
            child.join()
