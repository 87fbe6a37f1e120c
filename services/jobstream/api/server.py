"""The HTTP server: uvicorn, with bounds that it does not have."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from jobstream.api.app import Application

STOP_TIMEOUT_S: Final = 15  # a submission that waits for Kafka and the projection takes up to 12
KEEP_ALIVE_S: Final = 30
BACKLOG: Final = 1_024
HEAD_BYTES_MAX: Final = 64 * 1024  # request line and headers; httptools itself would collect gigabytes


class Server(uvicorn.Server):
    """Leaves signals to us: streams that could go on for days are told first."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class BoundedProtocol(HttpToolsProtocol):
    """Refuses a request whose head goes on beyond its limit; holds what one read may bring beyond it."""

    _in_head = False
    _head_bytes = 0

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_BYTES_MAX and not self.transport.is_closing():
                self.send_400_response(f"The head of the request has more than {HEAD_BYTES_MAX} bytes.")

    def on_message_begin(self) -> None:
        self._in_head, self._head_bytes = True, 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_head = False
        super().on_headers_complete()


def make_server(app: Application) -> Server:
    return Server(
        uvicorn.Config(
            app,
            http=BoundedProtocol,
            ws="none",
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=STOP_TIMEOUT_S,
            backlog=BACKLOG,
        )
    )
