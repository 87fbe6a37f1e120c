"""Run the API until SIGTERM or SIGINT. It starts without Kafka and Postgres, and says so in /readyz."""

import asyncio
import logging
import signal
import socket

import uvloop

from jobstream.api.app import Application, make_app
from jobstream.api.server import BACKLOG, make_server
from jobstream.runtime.config import Settings, load_settings
from jobstream.runtime.errors import ConfigurationError, JobstreamError
from jobstream.runtime.service import configure_logging

log = logging.getLogger(__name__)


def run(settings: Settings) -> None:
    """Serve until a signal. Raises ConfigurationError where settings cannot work or the address cannot be had."""
    app = make_app(settings)
    with listen(settings) as listener, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(app, listener))


def listen(settings: Settings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.api_host else socket.AF_INET
    try:
        return socket.create_server((settings.api_host, settings.api_port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise ConfigurationError(
            f"the API cannot listen on {settings.api_host}:{settings.api_port}: {error.strerror}; "
            "set JOBSTREAM_API_HOST and JOBSTREAM_API_PORT"
        ) from None


async def _serve(app: Application, listener: socket.socket) -> None:
    server = make_server(app)

    def stop() -> None:
        app.state.context.stopping.set()
        server.should_exit = True

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    host, port = listener.getsockname()[:2]
    log.info("the API listens on %s:%d", host, port)
    await server.serve(sockets=[listener])


def main() -> None:
    try:
        settings = load_settings()
        configure_logging(settings.log_level)
        run(settings)
    except JobstreamError as error:
        raise SystemExit(f"jobstream api: {error}") from None


if __name__ == "__main__":
    main()
