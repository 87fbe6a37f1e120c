"""The agent's side of its guardian: to start it, and to know when it and all that it held is gone."""

import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from jobstream.agent.channel import Channel, ChannelClosed
from jobstream.runtime.errors import JobstreamError

READY_WAIT_S: Final = 20.0  # a Python process starts in 0.1 s; much more on a machine that swaps
GONE_WAIT_S: Final = (
    10.0  # the kernel ends a whole PID namespace within ms; a process in a stuck system call takes longer
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ward:
    """A running guardian. `contained`: its end takes everything with it. `pidfd` becomes readable when it has ended."""

    channel: Channel
    pid: int
    pidfd: int
    contained: bool
    cgroups: bool

    def wait_gone(self) -> bool:
        """Wait until the process has ended, and with it, where contained, all that it held. False: it has not."""
        poller = select.poll()
        poller.register(self.pidfd, select.POLLIN)
        return bool(poller.poll(GONE_WAIT_S * 1000))


def start_guardian(config: Mapping[str, Any], *, lock: int | None = None, namespace: bool = True) -> Ward:
    """Start a guardian and configure it. It inherits `lock`, an open file that stays locked while it lives."""
    ours, theirs = socket.socketpair()
    command = [sys.executable, "-m", "jobstream.agent.guardian", str(theirs.fileno())]
    # A session of its own: what a terminal sends to our process group is ours to handle.
    started = subprocess.Popen(
        command if namespace else [*command, "plain"],
        pass_fds=[theirs.fileno(), *(() if lock is None else (lock,))],
        start_new_session=True,
        stdin=subprocess.DEVNULL,
    )
    theirs.close()
    channel = Channel(ours)
    try:
        ready = _receive_one(channel)
        pidfd = os.pidfd_open(ready["pid"])
        channel.send({**config})
        configured = _receive_one(channel)  # after pidfd_open: the id was still the guardian's then
    except (ChannelClosed, ProcessLookupError) as error:
        started.kill()
        raise JobstreamError(f"the agent's guardian process did not start: {error}; its errors are above") from None
    if ready["contained"]:
        started.wait()  # it has handed over to the init of the namespace
    return Ward(
        channel=channel, pid=ready["pid"], pidfd=pidfd, contained=ready["contained"], cgroups=configured["cgroups"]
    )


def _receive_one(channel: Channel) -> dict[str, Any]:
    until = time.monotonic() + READY_WAIT_S
    while (left := until - time.monotonic()) > 0:
        if select.select([channel.socket], [], [], left)[0] and (messages := channel.receive()):
            return messages[0][0]
    raise ChannelClosed(f"no answer within {READY_WAIT_S:.0f} s")
