"""Commands on the local stack: Kafka, PostgreSQL, every service and agents on this machine, owned by one supervisor."""

import shlex
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

from cyclopts import Parameter

from jobstream.cli.output import Json, print_json, print_table
from jobstream.runtime.errors import ConfigurationError, JobstreamError

Data = Annotated[Path | None, Parameter(help="Folder of the stack. [JOBSTREAM_DATA; default ~/.local/share/jobstream]")]
Result = TypeVar("Result")

SHOWN: Final = ("api_url", "api_key", "admin_key", "kafka", "postgres", "data", "metrics_urls")  # what `up` promises
AGENTS_MAX: Final = 64  # each is a process of about 60 MB


def up(
    *,
    agents: Annotated[int, Parameter(help="How many agents; default: 1.")] = 1,
    data: Data = None,
    detach: Annotated[bool, Parameter(help="Return when it is ready; `jobstream down` stops it.")] = False,
    json: Json = False,
) -> None:
    """Start the local stack. Its data is kept from run to run; without --detach, Ctrl-C stops it."""
    from jobstream.local import run

    if not 0 <= agents <= AGENTS_MAX:
        raise ValueError(f"--agents is between 0 and {AGENTS_MAX}, not {agents}")

    def ready(description: Mapping[str, Any]) -> None:
        if json:
            print_json({name: description[name] for name in SHOWN})
        else:
            _tell(description, detached=detach, data=data)
        sys.stdout.flush()

    asked(lambda: run.up(agents=agents, data=data, detach=detach, ready=ready, progress=_say))


def down(*, data: Data = None) -> None:
    """Stop the local stack and wait until nothing of it runs; its data stays."""
    from jobstream.local import run

    if not asked(lambda: run.down(data)):
        print("no local stack runs there")


def status(*, data: Data = None, json: Json = False) -> int:
    """Show the addresses and processes of the local stack; the exit code is 1 when none runs."""
    found = _status(data)
    if json:
        if found is None:
            print_json({"running": False})
        else:
            hidden = ("api_key", "admin_key", "postgres")  # `env` and `up --json` give them to who asks for them
            shown = {name: value for name, value in found.items() if name not in hidden}
            print_json({"running": True, **shown})
    elif found is None:
        print("no local stack runs there; start one with `jobstream up --detach`")
    else:
        print(f"api    {found['api_url']}\nkafka  {found['kafka']}\ndata   {found['data']}\n")
        print_table(
            ("process", "state", "pid", "restarts", "log"),
            (
                (
                    child["name"],
                    "ready" if child["ready"] else "starting",
                    child["pid"],
                    child["restarts"],
                    child["log"],
                )
                for child in found["children"]
            ),
        )
    return 0 if found else 1


def env(*, data: Data = None) -> None:
    """Print the local stack's settings as `export` lines, for `eval "$(jobstream env)"`."""
    found = _status(data)
    if found is None:
        raise ConfigurationError("no local stack runs there: start one with `jobstream up --detach`")
    names = ("api_url", "api_key", "admin_key", "kafka", "postgres", "data")
    variables = {f"JOBSTREAM_{name.upper()}": found[name] for name in names if found.get(name)}
    for name, value in (variables | found["settings"]).items():
        print(f"export {name}={shlex.quote(str(value))}")


def asked(question: Callable[[], Result]) -> Result:
    """What the local stack answers; its errors, which have a base of their own, as ours."""
    from jobstream.local.errors import LocalStackError

    try:
        return question()
    except LocalStackError as error:
        raise JobstreamError(str(error)) from None


def _status(data: Path | None) -> Mapping[str, Any] | None:
    from jobstream.local import run

    return run.status(data)


def _tell(description: Mapping[str, Any], *, detached: bool, data: Path | None) -> None:
    option = f" --data {shlex.quote(str(data))}" if data else ""
    stop = f"\nStop it with `jobstream down{option}`." if detached else ""
    print(
        f"The local stack is ready: API {description['api_url']} (documentation at {description['api_url']}/docs), "
        f"Kafka {description['kafka']}, data in {description['data']}.\n"
        f"Try `jobstream submit{option} --wait -- echo hello`.{stop}"
    )


def _say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)
