"""How the guardian holds what jobs start: as the init of a PID namespace, or as the subreaper of its descendants."""

import os
import socket

from jobstream.agent import kernel
from jobstream.agent.channel import Channel


def contain(agent: socket.socket, *, namespace: bool) -> None:
    """Go on as the init of a PID namespace where that can be made, else as a subreaper; tell the agent which.

    Where it can, the process that was started ends here and its child goes on, with the id that the agent is told.
    """
    contained = namespace and os.geteuid() == 0 and _enter_namespace(agent)
    if not contained:
        kernel.become_subreaper()
        _tell_ready(agent, os.getpid(), contained=False)
    kernel.set_no_new_privileges()


def _enter_namespace(agent: socket.socket) -> bool:
    here = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
    try:
        kernel.unshare_pid_and_mounts()
    except OSError:
        os.close(here)
        return False
    reading, writing = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        try:
            kernel.mount_own_proc()
        except OSError:
            os._exit(1)
        os.write(writing, b"y")
        os.close(writing)
        os.close(here)
        return True
    os.close(writing)
    if os.read(reading, 1) == b"y":
        _tell_ready(agent, pid, contained=True)
        os._exit(0)
    os.close(reading)
    os.waitpid(pid, 0)
    kernel.children_stay_here(here)
    os.close(here)
    return False


def _tell_ready(agent: socket.socket, pid: int, *, contained: bool) -> None:
    Channel(agent).send({"did": "ready", "pid": pid, "contained": contained})
