"""The entry point. The overview is printed from data alone; only a command that is called loads the parser and its module."""

import os
import sys
from collections.abc import Sequence

from jobstream.cli import exit_codes
from jobstream.cli.commands import overview


def main() -> None:
    """What the `jobstream` script runs."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code; nothing but an exit code leaves."""
    try:
        if not arguments or arguments[0] in ("--help", "-h", "help"):
            print(overview())
            return 0
        from jobstream.cli.app import call

        code = call(arguments)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return exit_codes.INTERRUPTED
    except BrokenPipeError:  # `jobstream list | head`: the reader has what it wants
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the flush at exit complains
        return exit_codes.SIGNALLED + 13


if __name__ == "__main__":
    main()
