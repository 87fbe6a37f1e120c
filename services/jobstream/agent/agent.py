"""The agent's loop: passes dispatches to the guardian, and what the guardian says to the log.

One thread owns all state here; the mailbox, Kafka's answers and the log store's writes have threads of their own, which
post to it. Times are CLOCK_BOOTTIME in ms, except where a name says otherwise.
"""

import logging
import os
import selectors
import time
from collections.abc import Mapping
from typing import Any, Final, NoReturn

from jobstream.agent import orders
from jobstream.agent.captures import Captures
from jobstream.agent.channel import ChannelClosed
from jobstream.agent.lease import Presences
from jobstream.agent.machine import Machine
from jobstream.agent.outbox import Outbox
from jobstream.agent.running import Running
from jobstream.agent.wakeup import StopSignals, Wakeup
from jobstream.agent.ward import Ward
from jobstream.agent.workdirs import Workdirs
from jobstream.runtime.clock import boottime_ms
from jobstream.runtime.config import Settings
from jobstream.runtime.errors import JobstreamError
from jobstream.runtime.faults import fault_point
from jobstream.runtime.log_store import AttemptLog
from jobstream.schemas.commands import (
    AttemptRefused,
    HeldLease,
    MachineGone,
    MachinePresent,
    MachineStopping,
)
from jobstream.schemas.events import AssignAttempt, CancelAttempt, RevokeAttempt
from jobstream.topics.catalogue import COMPLETIONS, HEARTBEATS, MACHINES

log = logging.getLogger(__name__)

EARLY_PRESENCE_MS: Final = 1_000  # after registration: the first one is as old as the leader's reading of it
REPORT_WAITS_FOR_LOG_MS: Final = 1_000  # so that the output of a job that has ended is there, if the store works
FAREWELL_MS: Final = 5_000  # for reports and output at the end; what is not acknowledged by then expires with its lease
WAIT_MS_MAX: Final = 60_000


class Agent:
    """One session of a machine, from registration until it has left."""

    def __init__(
        self,
        settings: Settings,
        machine: Machine,
        ward: Ward,
        *,
        outbox: Outbox,
        captures: Captures,
        workdirs: Workdirs,
        selector: selectors.BaseSelector,
        wakeup: Wakeup,
        stops: StopSignals,
    ) -> None:
        self._settings = settings
        self._machine = machine
        self._ward = ward
        self._outbox = outbox
        self._captures = captures
        self._workdirs = workdirs
        self._selector = selector
        self._wakeup = wakeup
        self._stops = stops
        self._presences = Presences()
        self._heartbeat_number = 0
        self._running: dict[int, Running] = {}  # by token
        self._path = os.environ.get("PATH", os.defpath)
        self._next_presence: int | None = None
        self._next_heartbeat = 0
        self._registered = False
        self._signals_seen = 0
        self._drain_until: int | None = None
        self._farewell_until: int | None = None

    def on_dispatch(self, dispatch: AssignAttempt | CancelAttempt | RevokeAttempt) -> None:
        """In the loop: one record of the mailbox that names this machine."""
        if dispatch.session != self._machine.session:
            return
        if isinstance(dispatch, AssignAttempt):
            self._assign(dispatch)
        elif isinstance(dispatch, CancelAttempt):
            lease = orders.lease_fields(dispatch)
            self._tell({"do": "end", "token": dispatch.token, "reason": "cancelled", "lease": lease})
        else:
            self._tell({"do": "end", "token": dispatch.token, "reason": "revoked"})

    def run(self) -> None:
        """Until the machine has left; raises JobstreamError where the guardian ends."""
        self._selector.register(self._wakeup.socket, selectors.EVENT_READ, self._wakeup.run_posted)
        self._selector.register(self._ward.channel.socket, selectors.EVENT_READ, self._hear)
        self._register()
        while not self._left():
            self._listen_for_writing()
            for key, _ in self._selector.select(self._wait_s()):
                key.data()
            self._turn(boottime_ms())

    # ---- the loop

    def _turn(self, now: int) -> None:
        if (signals := self._stops.count) > self._signals_seen:
            self._signals_seen = signals
            self._drain(now, kill=signals > 1)
        if self._next_presence is not None and now >= self._next_presence:
            self._present(now)
        if now >= self._next_heartbeat:
            self._next_heartbeat = now + self._settings.lease.heartbeat_ms
            self._heartbeat([(one.assign.tenant, one.held) for one in self._running.values() if one.held], now)
        self._captures.turn(now)
        self._outbox.resend_due(time.monotonic())
        for running in [one for one in self._running.values() if one.report_at is not None and now >= one.report_at]:
            self._report_end(running)
        if self._drain_until is not None and now >= self._drain_until:
            self._stop_all(None)

    def _wait_s(self) -> float:
        now = boottime_ms()
        times = [self._next_presence, self._next_heartbeat, self._captures.wake_at(), self._drain_until]
        times += [running.report_at for running in self._running.values()]
        times.append(self._farewell_until)
        if (resend := self._outbox.next_resend()) is not None:
            times.append(now + int((resend - time.monotonic()) * 1000) + 1)
        next_at = min((at for at in times if at is not None), default=now + WAIT_MS_MAX)
        return max(0, min(next_at - now, WAIT_MS_MAX)) / 1000

    def _listen_for_writing(self) -> None:
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._ward.channel.pending else 0)
        if self._selector.get_key(self._ward.channel.socket).events != events:
            self._selector.modify(self._ward.channel.socket, events, self._hear)

    # ---- dispatches and the guardian

    def _assign(self, assign: AssignAttempt) -> None:
        if assign.token in self._running:
            return
        folder = str(self._machine.work / f"{assign.job_id}-{assign.attempt}-{assign.token}")
        self._running[assign.token] = Running(assign=assign, folder=folder)
        begun = self._presences.begun(assign.presence)
        fault_point("agent.before_start")
        self._tell(orders.start_order(assign, presence_begun=begun, folder=folder, path=self._path))

    def _tell(self, message: dict[str, Any]) -> None:
        try:
            self._ward.channel.send(message)
        except ChannelClosed as error:
            self._guardian_gone(error)

    def _hear(self) -> None:
        try:
            self._ward.channel.flush()
            messages = self._ward.channel.receive()
        except ChannelClosed as error:
            self._guardian_gone(error)
        for message, descriptor in messages:
            token = message["token"]
            match message["did"]:
                case "started":
                    assert descriptor is not None
                    self._started(self._running[token], message["started_at_ms"], descriptor)
                case "ended":
                    self._ended(self._running[token], message)
                case "refused":
                    lease = orders.lease_fields(self._running.pop(token).assign)
                    self._refuse(lease, message["code"], message["detail"])
                case "known":
                    self._running.pop(token)
                case "banned" if message["lease"] is not None:
                    self._refuse(message["lease"], "cancelled", None)

    def _started(self, running: Running, started_at_ms: int, output: int) -> None:
        fault_point("agent.after_start")
        assign = running.assign
        running.started_at_ms = started_at_ms
        running.held = HeldLease(job_id=assign.job_id, token=assign.token, started_at_ms=started_at_ms)
        self._heartbeat([(assign.tenant, running.held)], boottime_ms())
        attempt_log = AttemptLog(tenant=assign.tenant, job_id=assign.job_id, attempt=assign.attempt, token=assign.token)
        self._captures.open(attempt_log, output)
        log.info("started %s attempt %d (token %d)", assign.job_id, assign.attempt, assign.token)

    def _ended(self, running: Running, message: Mapping[str, Any]) -> None:
        running.ended = message
        running.held = None
        running.report_at = boottime_ms() + REPORT_WAITS_FOR_LOG_MS
        self._workdirs.remove(running.folder)
        self._captures.finish(running.assign.token, lambda: self._report_end(running))

    def _report_end(self, running: Running) -> None:
        """Once: when the output is stored, or when it has been waited for long enough."""
        token = running.assign.token
        if self._running.pop(token, None) is None:
            return
        assert running.ended is not None and running.started_at_ms is not None
        report = orders.finished(orders.lease_fields(running.assign), running.started_at_ms, running.ended)
        log.info("ended %s attempt %d (token %d): %s", report.job_id, report.attempt, token, report.outcome)
        fault_point("agent.before_report")
        self._outbox.report(COMPLETIONS, report.tenant, report, lambda known: fault_point("agent.after_report"))

    def _refuse(self, lease: Mapping[str, Any], code: Any, detail: str | None) -> None:
        refusal = AttemptRefused(**lease, code=code, detail=orders.cut_text(detail))
        log.info("refused %s attempt %d (token %d): %s", refusal.job_id, refusal.attempt, refusal.token, code)
        self._outbox.report(COMPLETIONS, refusal.tenant, refusal, lambda known: None)

    def _guardian_gone(self, error: ChannelClosed) -> NoReturn:
        """What it held has ended with it where it was the init of a namespace; else only the leases' expiry tells."""
        if self._ward.wait_gone() and self._ward.contained:
            now = boottime_ms()
            for running in list(self._running.values()):
                self._lost_with_guardian(running)
            self._say_goodbye(now)
        raise JobstreamError(
            f"the agent's guardian process has ended ({error}), and with it every attempt: start again"
        )

    def _lost_with_guardian(self, running: Running) -> None:
        if running.started_at_ms is None:
            return  # not known whether it had started: its lease expires
        if running.ended is None:
            running.ended = {
                "reason": "guardian",
                "exit_code": None,
                "signal": None,
                "finished_at_ms": running.started_at_ms,
                "detail": None,
            }
        self._report_end(running)

    # ---- signs of life

    def _register(self) -> None:
        registration = self._machine.registration

        def registered(known: bool) -> None:
            self._registered = True
            log.info("registered %s with %s", registration.machine_id, registration.resources)
            self._next_presence = boottime_ms()

        self._outbox.report(MACHINES, registration.machine_id, registration, registered)

    def _present(self, now: int) -> None:
        number = self._presences.begin(now)
        heartbeat_ms = self._settings.lease.heartbeat_ms
        self._next_presence = now + (min(EARLY_PRESENCE_MS, heartbeat_ms) if number == 1 else heartbeat_ms)
        machine_id, session = self._machine.machine_id, self._machine.session
        presence = MachinePresent(machine_id=machine_id, session=session, number=number)
        self._outbox.send(MACHINES, machine_id, presence, lambda known: None)

    def _heartbeat(self, held: list[tuple[str, HeldLease]], now: int) -> None:
        machine_id, session = self._machine.machine_id, self._machine.session
        for beat in orders.heartbeats(machine_id, session, self._heartbeat_number + 1, held):
            self._heartbeat_number = beat.number
            tokens = [lease.token for lease in beat.leases]

            def acknowledged(known: bool, tokens: list[int] = tokens) -> None:
                if known:
                    self._tell({"do": "acknowledged", "begun": now, "tokens": tokens})

            self._outbox.send(HEARTBEATS, beat.tenant, beat, acknowledged)

    # ---- leaving

    def _drain(self, now: int, *, kill: bool) -> None:
        if self._drain_until is None and not kill:
            log.info("draining: %d attempts are running", len(self._running))
            self._tell({"do": "drain"})
            stopping = MachineStopping(machine_id=self._machine.machine_id, session=self._machine.session)
            self._outbox.report(MACHINES, stopping.machine_id, stopping, lambda known: None)
            self._drain_until = now + self._settings.drain_ms
        elif kill:
            log.warning("killing %d attempts", len(self._running))
            self._tell({"do": "drain"})
            self._stop_all(0)

    def _stop_all(self, grace_ms: int | None) -> None:
        self._drain_until = None
        grace_ms = self._settings.kill_grace_ms if grace_ms is None else grace_ms
        for token in self._running:
            self._tell({"do": "end", "token": token, "reason": "stopped", "grace_ms": grace_ms})

    def _left(self) -> bool:
        """Whether everything has ended and been told, or has had its time."""
        if self._signals_seen == 0 or self._running:
            return False
        now = boottime_ms()
        if self._farewell_until is None:
            self._farewell_until = now + FAREWELL_MS
        if now < self._farewell_until and (self._outbox.reports_pending or len(self._captures)):
            return False
        self._say_goodbye(now)
        return True

    def _say_goodbye(self, now: int) -> None:
        gone = MachineGone(machine_id=self._machine.machine_id, session=self._machine.session)
        if self._registered:
            self._outbox.send(MACHINES, gone.machine_id, gone, lambda known: None)
        if left := self._outbox.close(FAREWELL_MS / 1000):
            log.warning("%d records did not reach Kafka: what they report expires with its lease", left)
