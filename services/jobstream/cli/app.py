"""From arguments to a command: parsing by cyclopts, and every error as one sentence on standard error."""

import os
import sys
from collections.abc import Sequence
from difflib import get_close_matches

from cyclopts import App, CycloptsError, Parameter

from jobstream.cli import exit_codes
from jobstream.cli.commands import COMMANDS
from jobstream.runtime.errors import JobstreamError

DEBUG = "JOBSTREAM_DEBUG"  # set: unexpected errors show their stack trace


def build() -> App:
    """The parser of every command; each is imported when it is called."""
    app = App(
        name="jobstream",
        help="A distributed job scheduler on a Kafka log.",
        version=version,
        default_parameter=Parameter(negative=(), show_default=False),  # no --no-json; defaults are in the words
        help_flags=("--help", "-h"),
        help_format="plaintext",  # markdown would cost 60 ms
        result_action="return_value",
        suppress_keyboard_interrupt=False,
    )
    for entry in COMMANDS:
        app.command(entry.target, name=entry.name)
    return app


def version() -> str:
    from importlib.metadata import version as version_of

    return version_of("jobstream")


def call(arguments: Sequence[str]) -> int:
    """Run a command; its result, when it is a number, is the exit code."""
    names = [entry.name for entry in COMMANDS]
    if not arguments[0].startswith("-") and arguments[0] not in names:
        near = get_close_matches(arguments[0], names, n=1)
        hint = f"did you mean `jobstream {near[0]}`?" if near else "see `jobstream --help`"
        return fail(f"there is no command {arguments[0]!r}; {hint}")
    try:
        result = build()(list(arguments), exit_on_error=False, print_error=False)
    except CycloptsError as error:
        return fail(_usage(error, arguments))
    except (JobstreamError, ValueError) as error:
        return fail(str(error), error)
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else exit_codes.OWN_ERROR
    except (KeyboardInterrupt, BrokenPipeError):
        raise
    except Exception as error:
        if os.environ.get(DEBUG):
            raise
        return fail(f"unexpected {type(error).__name__}: {error} (set {DEBUG}=1 for the stack trace)")
    return result if isinstance(result, int) and not isinstance(result, bool) else 0


def fail(message: str, error: Exception | None = None) -> int:
    if error is not None and os.environ.get(DEBUG):
        raise error
    print(f"jobstream: {message.strip()}", file=sys.stderr)
    return exit_codes.OWN_ERROR


def _usage(error: CycloptsError, arguments: Sequence[str]) -> str:
    chain = " ".join(error.command_chain or ())
    hint = f"; see `jobstream {chain} --help`" if chain else "; see `jobstream --help`"
    if chain == "submit" and "--" not in arguments:
        hint = "; options of the job's own command come after --, as in `jobstream submit -- ls -l`"
    return f"{' '.join(str(error).split()).rstrip('.')}{hint}"
