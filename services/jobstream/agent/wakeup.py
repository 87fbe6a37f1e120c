"""How other threads and signals reach the one loop that owns the agent's state."""

import contextlib
import signal
import socket
from collections import deque
from collections.abc import Callable
from types import FrameType

Call = Callable[[], None]


class StopSignals:
    """Counts SIGTERM and SIGINT: the first one drains, the second one kills. Main thread only."""

    def __init__(self) -> None:
        self.count = 0
        signal.signal(signal.SIGTERM, self._handle)
        signal.signal(signal.SIGINT, self._handle)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.count += 1


class Wakeup:
    """Calls posted from any thread, run by the loop; `socket` is readable while there are some, or after a signal."""

    def __init__(self) -> None:
        self.socket, self._in = socket.socketpair()
        self.socket.setblocking(False)
        self._in.setblocking(False)
        self._calls: deque[Call] = deque()

    def post(self, call: Call) -> None:
        """Have `call` run by the loop. From any thread."""
        self._calls.append(call)
        with contextlib.suppress(BlockingIOError):  # full: it is readable anyway
            self._in.send(b"\0")

    def run_posted(self) -> None:
        """In the loop, when the socket is readable."""
        with contextlib.suppress(BlockingIOError):
            while len(self.socket.recv(4096)) == 4096:
                pass
        while self._calls:
            self._calls.popleft()()

    def signals_wake(self) -> None:
        """Signals of this process make the socket readable. Main thread only."""
        signal.set_wakeup_fd(self._in.fileno(), warn_on_full_buffer=False)

    def close(self) -> None:
        with contextlib.suppress(ValueError):  # not the main thread: never set
            signal.set_wakeup_fd(-1)
        self.socket.close()
        self._in.close()
