"""Starting and stopping: signals set an event that loops wait on; errors of operation end with a sentence."""

import logging
import signal
import sys
import threading
from types import FrameType
from typing import Final

LOG_FORMAT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def stop_on_signals() -> threading.Event:
    """An event that SIGTERM or SIGINT sets. Call from the main thread."""
    stop = threading.Event()

    def handle(number: int, frame: FrameType | None) -> None:
        stop.set()

    signal.signal(signal.SIGTERM, handle)
    signal.signal(signal.SIGINT, handle)
    return stop


def configure_logging(level: str) -> None:
    """Log to standard error, one line a message."""
    logging.basicConfig(level=level.upper(), format=LOG_FORMAT, stream=sys.stderr)


class Backoff:
    """Waits that double from `first_s` to `most_s`, and end at once when `stop` is set."""

    def __init__(self, stop: threading.Event, *, first_s: float = 0.1, most_s: float = 5.0) -> None:
        self._stop = stop
        self._first_s = first_s
        self._most_s = most_s
        self._next_s = first_s

    def wait(self) -> None:
        self._stop.wait(self._next_s)
        self._next_s = min(self._next_s * 2, self._most_s)

    def reset(self) -> None:
        self._next_s = self._first_s
