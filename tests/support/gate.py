"""A way to Postgres that can be shut: what a database that is away looks like to a client, without harm to the others."""

import contextlib
import socket
import threading
from pathlib import Path
from types import TracebackType
from urllib.parse import parse_qs, quote, urlsplit

PORT = 5432  # of the name of the socket alone


class PostgresGate:
    """Listens on a Unix socket in `folder` and passes bytes on to a libpq URL. `shut` ends every connection."""

    def __init__(self, folder: Path, postgres: str) -> None:
        self._path = folder / f".s.PGSQL.{PORT}"
        self._target = urlsplit(postgres)
        self._listener: socket.socket | None = None
        self._open_sockets: list[socket.socket] = []
        credentials = f"{self._target.username}:{self._target.password}@" if self._target.username else ""
        self.url = f"postgresql://{credentials}/{self._target.path.lstrip('/')}?host={quote(str(folder))}&port={PORT}"

    def __enter__(self) -> "PostgresGate":
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shut()

    def open(self) -> None:
        self._path.unlink(missing_ok=True)
        listener = self._listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(self._path))
        listener.listen()
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()

    def shut(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._path.unlink(missing_ok=True)
            self._listener = None
        for opened in self._open_sockets:
            with contextlib.suppress(OSError):
                opened.shutdown(socket.SHUT_RDWR)
        self._open_sockets.clear()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:  # shut
                return
            server = self._connect()
            self._open_sockets += [client, server]
            for source, sink in ((client, server), (server, client)):
                threading.Thread(target=_pass_on, args=(source, sink), daemon=True).start()

    def _connect(self) -> socket.socket:
        hosts = parse_qs(self._target.query).get("host")
        if hosts and hosts[0].startswith("/"):
            server = socket.socket(socket.AF_UNIX)
            server.connect(f"{hosts[0]}/.s.PGSQL.{self._target.port or PORT}")
            return server
        return socket.create_connection((self._target.hostname or "127.0.0.1", self._target.port or PORT))


def _pass_on(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65_536):
            sink.sendall(data)
    for end in (source, sink):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
