"""A forked child of the guardian that waits for one attempt and becomes its main process.

It is made ahead of need, since forking and above all joining a cgroup (the kernel waits up to 20 ms) take longer than
all the rest. It holds no descriptor but its socket, and ends when the guardian does.
"""

import contextlib
import errno
import os
import signal
import socket
from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn

import orjson

from jobstream.agent import kernel
from jobstream.runtime.clock import boottime_ms

MESSAGE_BYTES_MAX: Final = 4 * 1024 * 1024
EXIT_NOT_FOUND: Final = 127  # as shells say it
EXIT_NOT_EXECUTABLE: Final = 126
FOLDER_MODE: Final = 0o700
UMASK: Final = 0o022


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """Whom jobs run as."""

    uid: int
    gid: int
    groups: tuple[int, ...]


@dataclass(slots=True, kw_only=True)
class Launcher:
    """The guardian's side of a waiting child. The socket ends when the child has become the program, or has ended."""

    pid: int
    socket: socket.socket


def fork_launcher(procs_file: Path | None, user: User | None) -> Launcher:
    """Make a child that joins the cgroup of `procs_file` and waits. Raises OSError."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        pid = os.fork()
    except OSError:
        ours.close()
        theirs.close()
        raise
    if pid == 0:
        _child(theirs, procs_file, user)
    theirs.close()
    return Launcher(pid=pid, socket=ours)


def launch(launcher: Launcher, order: Mapping[str, Any], output: int) -> None:
    """Tell a waiting child what to become: argv, env, folder, until (trust, CLOCK_BOOTTIME ms). Raises OSError."""
    body = orjson.dumps(order)
    assert len(body) <= MESSAGE_BYTES_MAX, len(body)
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", [output]))]
    sent = launcher.socket.sendmsg([body], rights, socket.MSG_NOSIGNAL)
    if sent < len(body):
        launcher.socket.sendall(body[sent:])
    launcher.socket.shutdown(socket.SHUT_WR)


def _child(theirs: socket.socket, procs_file: Path | None, user: User | None) -> NoReturn:
    """Never returns to the guardian's code, whatever happens."""
    said = ""
    status = EXIT_NOT_EXECUTABLE
    end = theirs
    try:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        own = os.dup2(theirs.fileno(), 3, inheritable=False)
        os.closerange(4, 1 << 20)  # an open end of another attempt's pipe would hide its end
        end = socket.socket(fileno=own)
        os.setsid()
        if procs_file is not None:
            procs_file.write_text("0")
        order, output = _wait(end)
        _become(order, output, user)
    except FileNotFoundError as error:
        said, status = _told(error), EXIT_NOT_FOUND
    except BaseException as error:
        said = _told(error)
    with contextlib.suppress(OSError):
        os.write(2, f"jobstream: {said}\n".encode())
        end.sendall(said.encode())
    os._exit(status)


def _told(error: BaseException) -> str:
    if isinstance(error, OSError) and error.errno is not None:
        name = f": {error.filename}" if error.filename is not None else ""
        return f"cannot start: {os.strerror(error.errno)}{name}"
    return f"cannot start: {error or type(error).__name__}"


def _wait(end: socket.socket) -> tuple[dict[str, Any], int]:
    """The order and the output's descriptor; exits when the guardian ends or does not need this child."""
    body = bytearray()
    output = -1
    while True:
        data, descriptors, _, _ = socket.recv_fds(end, 256 * 1024, 1)
        if descriptors:
            output = descriptors[0]
        if not data:
            break
        body += data
    if output < 0:
        os._exit(0)
    order: dict[str, Any] = orjson.loads(bytes(body))
    return order, output


def _become(order: Mapping[str, Any], output: int, user: User | None) -> NoReturn:
    nothing = os.open("/dev/null", os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    for descriptor in {nothing, output} - {0, 1, 2}:
        os.close(descriptor)
    os.chdir(order["folder"])
    os.umask(UMASK)
    if user is not None:
        os.setgroups(user.groups)
        os.setresgid(user.gid, user.gid, user.gid)
        os.setresuid(user.uid, user.uid, user.uid)
    kernel.die_with_parent(signal.SIGKILL)
    if os.getppid() != order["guardian"]:
        os._exit(EXIT_NOT_EXECUTABLE)
    argv: list[str] = order["argv"]
    env: dict[str, str] = order["env"]
    if boottime_ms() >= order["until"]:  # frozen between the guardian's check and here
        raise RuntimeError("the lease is not trusted any more")
    _execute(argv, env)


def _execute(argv: list[str], env: dict[str, str]) -> NoReturn:
    """As a shell finds programs, but a folder of the path that this user cannot enter has none, and denies nothing."""
    denied: OSError | None = None
    for name in _candidates(argv[0], env.get("PATH", os.defpath)):
        try:
            os.execve(name, argv, env)  # noqa: S606 (no shell is the point)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except PermissionError as error:
            denied = error
        except OSError as error:
            raise OSError(error.errno, error.strerror, argv[0]) from None
    number = errno.ENOENT if denied is None else errno.EACCES
    raise OSError(number, os.strerror(number), argv[0])


def _candidates(program: str, path: str) -> list[str]:
    if "/" in program:
        return [program]
    folders = [folder or "." for folder in path.split(os.pathsep)]
    return [f"{folder}/{program}" for folder in folders if os.access(folder, os.X_OK)]
