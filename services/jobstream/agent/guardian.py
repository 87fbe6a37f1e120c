"""The guardian: parent of everything that jobs start. Keeps the deadlines, so that a dead or frozen agent is no hole.

A program of its own with one loop and no threads; it imports little, so that forking is cheap. It answers one agent
over a socket pair, and when the agent is gone goes on until the trust in every lease has ended. As root it is the init
of a PID namespace, so that its own end takes everything with it; else it is the subreaper of its descendants.
"""

import contextlib
import gc
import os
import selectors
import signal
import socket
import sys
from typing import Any, Final

from jobstream.agent.attempts import Attempt
from jobstream.agent.channel import Channel, ChannelClosed
from jobstream.agent.containment import contain
from jobstream.agent.launcher import FOLDER_MODE, User, launch
from jobstream.agent.lease import Admitted, Leases, Refused, Request
from jobstream.agent.spares import Spares, discard
from jobstream.agent.tree import Descent, cgroup_home
from jobstream.runtime.clock import boottime_ms, wall_ms

DETAIL_BYTES_MAX: Final = 1_000
WAIT_MS_MAX: Final = 60_000


class Guardian:
    """State and loop. Times are CLOCK_BOOTTIME in ms."""

    def __init__(self, channel: Channel, config: dict[str, Any]) -> None:
        self._channel = channel
        self._leases = Leases(
            ttl_ms=config["ttl_ms"],
            margin_ms=config["margin_ms"],
            cpu_millis=config["cpu_millis"],
            memory_mib=config["memory_mib"],
        )
        self._grace_ms: int = config["grace_ms"]
        user = config["user"]
        self._user = None if user is None else User(uid=user["uid"], gid=user["gid"], groups=tuple(user["groups"]))
        cgroups = cgroup_home(config["cgroup"]) if config["cgroup"] else None
        self._attempts: dict[int, Attempt] = {}
        self._spares = Spares(cgroups, self._user)
        self._orphaned = False
        self._selector = selectors.DefaultSelector()
        self._wake, wake_in = socket.socketpair()
        self._wake.setblocking(False)
        wake_in.setblocking(False)
        self._wake_in = wake_in
        signal.set_wakeup_fd(wake_in.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        for sent_to_the_agent_too in (signal.SIGTERM, signal.SIGINT):
            signal.signal(sent_to_the_agent_too, signal.SIG_IGN)

    def run(self) -> None:
        """Until the agent is gone and nothing lives."""
        self._selector.register(self._wake, selectors.EVENT_READ, None)
        self._selector.register(self._channel.socket, selectors.EVENT_READ, None)
        gc.freeze()  # forked children then share these pages
        self._say({"did": "configured", "cgroups": self._spares.cgroups is not None})
        while not self._orphaned or self._attempts:
            if not self._orphaned:
                self._spares.refill(boottime_ms())
            self._listen_for_writing()
            for key, _ in self._selector.select(self._wait_s()):
                if key.fileobj is self._wake:
                    with contextlib.suppress(BlockingIOError):
                        self._wake.recv(4096)
                elif key.data is not None:
                    self._launched(key.data)
            self._hear()
            self._reap()
            self._keep_deadlines(boottime_ms())
        self._spares.close()

    # ---- the agent

    def _hear(self) -> None:
        if self._orphaned:
            return
        try:
            self._channel.flush()
            for message, _ in self._channel.receive():
                self._obey(message)
        except ChannelClosed:
            self._orphaned = True
            self._leases.draining = True
            self._selector.unregister(self._channel.socket)
            self._channel.socket.close()

    def _obey(self, message: dict[str, Any]) -> None:
        now = boottime_ms()
        match message["do"]:
            case "start":
                self._start(message, now)
            case "acknowledged":
                self._leases.acknowledged(message["begun"], message["tokens"], now)
            case "end":
                self._end(message, now)
            case "drain":
                self._leases.draining = True
            case other:
                raise ChannelClosed(f"an unknown request: {other!r}")

    def _end(self, message: dict[str, Any], now: int) -> None:
        token = message["token"]
        if (attempt := self._attempts.get(token)) is not None:
            attempt.end(message["reason"], now, message.get("grace_ms", self._grace_ms))
        elif self._leases.ban(token):
            self._say({"did": "banned", "token": token, "lease": message.get("lease")})

    def _start(self, message: dict[str, Any], now: int) -> None:
        token = message["token"]
        answer = self._leases.admit(
            Request(
                token=token,
                presence_begun=message["begun"],
                cpu_millis=message["cpu_millis"],
                memory_mib=message["memory_mib"],
            ),
            now,
        )
        if isinstance(answer, Refused):
            self._say({"did": "refused", "token": token, "code": answer.code, "detail": None})
        elif answer is None:
            self._say({"did": "known", "token": token})
        else:
            try:
                self._attempts[token] = self._launch(message, answer, now)
            except OSError as error:
                self._leases.close(token)
                self._say({"did": "refused", "token": token, "code": "broken", "detail": f"cannot start: {error}"})

    def _say(self, message: dict[str, Any], descriptor: int | None = None) -> None:
        if not self._orphaned:
            with contextlib.suppress(ChannelClosed):  # receiving finds the end too, and reacts
                self._channel.send(message, descriptor)

    # ---- processes

    def _launch(self, message: dict[str, Any], admitted: Admitted, now: int) -> Attempt:
        token, folder = message["token"], message["folder"]
        launcher, cgroup = self._spares.take(now)
        try:
            os.mkdir(folder, FOLDER_MODE)  # noqa: PTH102
            if self._user is not None:
                os.chown(folder, self._user.uid, self._user.gid)
            reading, writing = os.pipe2(os.O_CLOEXEC)
            order = {
                "argv": message["argv"],
                "env": message["env"],
                "folder": folder,
                "until": admitted.trusted_until,
                "guardian": os.getpid(),
            }
            try:
                launch(launcher, order, writing)
            except BaseException:
                os.close(reading)
                raise
            finally:
                os.close(writing)
        except BaseException:
            discard(launcher, cgroup)
            raise
        launcher.socket.setblocking(False)
        timeout_ms = message["timeout_ms"]
        attempt = Attempt(
            token=token,
            launcher=launcher,
            tree=cgroup or Descent(launcher.pid, token, self._main_pids),
            output=reading,
            folder=folder,
            started_at_ms=wall_ms(),
            begun=now,
            timeout_at=None if timeout_ms is None else now + timeout_ms,
        )
        self._selector.register(launcher.socket, selectors.EVENT_READ, attempt)
        return attempt

    def _launched(self, attempt: Attempt) -> None:
        """The launcher's socket: its end says that the program runs, words before it why it could not."""
        if attempt.launched:
            return
        try:
            while said := attempt.launcher.socket.recv(4096):
                attempt.detail += said[: DETAIL_BYTES_MAX - len(attempt.detail)]
        except BlockingIOError:
            return
        except OSError:
            pass
        attempt.launched = True
        self._selector.unregister(attempt.launcher.socket)
        attempt.launcher.socket.close()
        self._say({"did": "started", "token": attempt.token, "started_at_ms": attempt.started_at_ms}, attempt.output)

    def _reap(self) -> None:
        """Wait for all that has ended: main processes, orphans that came to us, spare launchers."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            attempt = next((one for one in self._attempts.values() if one.launcher.pid == pid), None)
            if attempt is not None and attempt.exit_status is None:
                attempt.exited(status, boottime_ms())
            self._spares.ended(pid)

    def _keep_deadlines(self, now: int) -> None:
        for token in self._leases.untrusted(now):
            attempt = self._attempts[token]
            if not attempt.killing:
                attempt.end("untrusted", now, 0)
        for attempt in list(self._attempts.values()):
            if attempt.gone():
                self._finish(attempt, now)
                continue
            if attempt.timeout_at is not None and now >= attempt.timeout_at:
                attempt.timeout_at = None
                attempt.end("timed_out", now, self._grace_ms)
            if self._orphaned and not attempt.killing:
                # Nobody could tell how it ends, so all that it does would be done again elsewhere: not one step more.
                attempt.end("untrusted", now, 0)
            if attempt.kill_at is not None and now >= attempt.kill_at:
                attempt.kill(now)

    def _finish(self, attempt: Attempt, now: int) -> None:
        if not attempt.launched:
            self._launched(attempt)
        del self._attempts[attempt.token]
        self._leases.close(attempt.token)
        self._say(dict(attempt.report(now)))
        os.close(attempt.output)
        with contextlib.suppress(OSError):
            attempt.tree.remove()

    def _main_pids(self) -> list[int]:
        return [one.launcher.pid for one in self._attempts.values()] + self._spares.pids()

    # ---- waiting

    def _wait_s(self) -> float:
        times = [attempt.wake_at() for attempt in self._attempts.values()]
        times += [
            lease.trusted_until for token, lease in self._leases.held.items() if not self._attempts[token].killing
        ]
        if not self._orphaned:
            times.append(self._spares.refill_at)
        next_at = min((at for at in times if at is not None), default=None)
        if next_at is None:
            return WAIT_MS_MAX / 1000
        return max(0, min(next_at - boottime_ms(), WAIT_MS_MAX)) / 1000

    def _listen_for_writing(self) -> None:
        if not self._orphaned:
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._channel.pending else 0)
            self._selector.modify(self._channel.socket, events, None)


def main() -> None:
    """`python -m jobstream.agent.guardian DESCRIPTOR [plain]`: the socket to the agent; plain: make no PID namespace."""
    os.chdir("/")
    agent = socket.socket(fileno=int(sys.argv[1]))
    contain(agent, namespace="plain" not in sys.argv[2:])
    channel = Channel(agent)
    selector = selectors.DefaultSelector()
    selector.register(agent, selectors.EVENT_READ)
    while True:
        selector.select()
        try:
            messages = channel.receive()
        except ChannelClosed:
            return
        if messages:
            selector.close()
            Guardian(channel, messages[0][0]).run()
            return


if __name__ == "__main__":
    main()
