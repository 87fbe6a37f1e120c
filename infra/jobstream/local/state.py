"""What a stack says about itself, `DATA/stack.json`, and the lock that makes one supervisor the owner of a data folder."""

import fcntl
import json
import os
import random
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from jobstream.local.errors import DataInUse, LocalStackError
from jobstream.local.paths import Layout
from jobstream.local.process import ProcessId

# Below those that the kernel gives to outgoing connections: a client that tries to connect again and again while the broker
# is away would be given the broker's port for its own end in the long run, and be connected to itself.
PORTS = range(20_000, 30_000)
PORT_TRIES = 200

State = dict[str, Any]  # the JSON object of stack.json, as `stack.describe` makes it


def read(layout: Layout) -> State | None:
    """The last state that was written, or None; `supervisor_of` says whether it is still true."""
    try:
        state: State = json.loads(layout.state.read_text())
    except (OSError, ValueError):
        return None
    return state


def write_private(path: Path, content: Any) -> None:
    """Replace a JSON file in one step, readable by this user alone: it holds keys and passwords."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        json.dump(content, file, indent=2)
        file.write("\n")
    temporary.replace(path)


def supervisor_of(state: State | None) -> ProcessId | None:
    """The supervisor that wrote the state, if it still lives."""
    if not state or "supervisor" not in state:
        return None
    process = ProcessId(**state["supervisor"])
    return process if process.alive() else None


def own_supervisor() -> dict[str, int]:
    """This process, as the state names it."""
    process = ProcessId.of(os.getpid())
    assert process is not None
    return asdict(process)


@contextmanager
def owned(layout: Layout) -> Iterator[None]:
    """Own the data folder as long as this process lives; raises DataInUse at once when another one does."""
    with layout.lock.open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise DataInUse(layout.data, file.read().strip() or "it is starting") from None
        file.truncate(0)
        file.write(f"supervisor {os.getpid()}\n")
        file.flush()
        yield
        file.truncate(0)


def ports(layout: Layout, names: tuple[str, ...]) -> dict[str, int]:
    """A loopback port for each name: the one of the last run where it is still free, so that addresses stay."""
    try:
        kept = json.loads(layout.ports.read_text())
    except (OSError, ValueError):
        kept = {}
    chosen: dict[str, int] = {}
    held: list[socket.socket] = []  # until all are chosen, so that no two are the same
    try:
        for name in names:
            wanted = [kept[name]] if name in kept else []
            tries = (_try_bind(port) for port in [*wanted, *random.sample(PORTS, PORT_TRIES)])
            listener = next(filter(None, tries), None)
            if listener is None:
                raise LocalStackError(f"no free port for {name} on 127.0.0.1 between {PORTS[0]} and {PORTS[-1]}")
            held.append(listener)
            chosen[name] = listener.getsockname()[1]
    finally:
        for listener in held:
            listener.close()
    write_private(layout.ports, kept | chosen)
    return chosen


def _try_bind(port: int) -> socket.socket | None:
    """Hold a loopback port; None when it is taken."""
    listener = socket.socket()
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections of the last run may linger
        listener.bind(("127.0.0.1", port))
    except OSError:
        listener.close()
        return None
    return listener


def read_keys(layout: Layout) -> dict[str, str]:
    """The API keys of the stack, made at its first start: `api_key` and `admin_key`; empty until then."""
    try:
        keys: dict[str, str] = json.loads(layout.keys.read_text())
    except (OSError, ValueError):
        return {}
    return keys
