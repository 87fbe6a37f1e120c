"""Run a projector until it is told to stop."""

import sys

from jobstream.projector.consumer import Projector
from jobstream.runtime.config import Settings, load_settings
from jobstream.runtime.errors import JobstreamError
from jobstream.runtime.service import configure_logging, stop_on_signals


def run(settings: Settings) -> None:
    """Blocks until SIGTERM or SIGINT. Raises ConfigurationError, or LogBroken at the end where partitions have stopped."""
    configure_logging(settings.log_level)
    Projector(settings, stop_on_signals()).run()


if __name__ == "__main__":
    try:
        run(load_settings())
    except JobstreamError as error:
        sys.exit(f"jobstream projector: {error}")
