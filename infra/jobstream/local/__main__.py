"""`python -m jobstream.local`: Kafka and PostgreSQL alone, without the services, for developers and tests."""

import argparse
import json
import sys
from pathlib import Path

from jobstream.local import run
from jobstream.local.errors import LocalStackError
from jobstream.local.state import State


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m jobstream.local", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    start = commands.add_parser("run", help="start Kafka and PostgreSQL")
    start.add_argument("--detach", action="store_true", help="leave them running; stop them with `stop`")
    start.add_argument("--json", action="store_true", help="print one JSON object when they are ready")
    stop = commands.add_parser("stop", help="stop them")
    supervise = commands.add_parser("supervise")  # what `run --detach` starts
    supervise.add_argument("--ready-fd", type=int, required=True)
    supervise.add_argument("--agents", type=int)
    supervise.add_argument("--until", type=int)
    for command in (start, stop, supervise):
        command.add_argument("--data", type=Path, help="the data folder")
    given = parser.parse_args()

    def show(description: State) -> None:
        plain = f"kafka     {description['kafka']}\npostgres  {description['postgres']}"
        sys.stdout.write(f"{json.dumps(description) if given.json else plain}\n")
        sys.stdout.flush()

    def say(message: object) -> None:
        sys.stderr.write(f"{message}\n")

    try:
        if given.command == "supervise":
            return run.supervise(data=given.data, agents=given.agents, ready_fd=given.ready_fd, until=given.until)
        if given.command == "stop":
            if not run.down(given.data):
                say("nothing runs there")
        else:
            run.up(agents=None, data=given.data, detach=given.detach, ready=show, progress=say)
    except LocalStackError as error:
        say(error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
