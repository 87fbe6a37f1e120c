"""Machines for tests of the leader: an agent's protocol over the real broker, without processes."""

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from confluent_kafka import OFFSET_END

from jobstream.runtime.config import Settings
from jobstream.runtime.kafka import assign_at, headers_of, make_consumer, make_producer, offsets_at, poll_batch
from jobstream.schemas import commands as cmd
from jobstream.schemas import events as ev
from jobstream.schemas.base import Message
from jobstream.schemas.codec import decode, encode
from jobstream.schemas.envelope import Envelope, format_time, from_headers, to_headers
from jobstream.schemas.new_ids import new_event_id, new_job_id
from jobstream.schemas.resources import Resources
from jobstream.topics.catalogue import COMPLETIONS, DISPATCH, HEARTBEATS, MACHINES, SUBMISSIONS, Topic

PATIENCE_S = 60.0


class Sender:
    """Writes to inboxes as producers and agents do."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._producer = make_producer(settings)

    def send(self, topic: Topic, key: str, message: Message) -> str:
        """Send a message; its event id."""
        identity = new_event_id()
        envelope = Envelope(id=identity, type=message.TYPE, source="/test", time=format_time(int(time.time() * 1000)))
        self.send_raw(topic, key.encode(), encode(message), to_headers(envelope))
        return identity

    def send_raw(self, topic: Topic, key: bytes | None, value: bytes | None, headers: object) -> None:
        self._producer.produce(
            self._settings.topic_prefix + topic.name,
            key=key,
            value=value,
            headers=headers,  # type: ignore[arg-type]
        )
        self._producer.poll(0)

    def submit(self, tenant: str, **changes: object) -> str:
        """Submit a job of 1 core and 64 MiB; its id."""
        job_id = str(changes.pop("job_id", None) or new_job_id())
        key = changes.pop("idempotency_key", None)
        spec = {"name": "test", "command": ("true",), "resources": Resources(cpu_millis=1000, memory_mib=64), **changes}
        command = cmd.SubmitJob.model_validate(
            {"tenant": tenant, "job_id": job_id, "idempotency_key": key, "spec": cmd.JobSpec.model_validate(spec)}
        )
        self.send(SUBMISSIONS, tenant, command)
        return job_id

    def flush(self) -> None:
        assert self._producer.flush(PATIENCE_S) == 0, "not everything was delivered"


class PlayedMachine:
    """A machine that starts what it is told to and reports it as `outcome`; None: it goes on running. Runs in a thread."""

    def __init__(
        self,
        settings: Settings,
        machine_id: str = "played",
        *,
        cpu_millis: int = 8_000,
        outcome: Callable[[ev.AssignAttempt], str | None] = lambda _: "succeeded",
        answers: bool = True,
        present_every_s: float = 0.3,
    ) -> None:
        self.machine_id = machine_id
        self.session = f"session-{new_event_id()}"
        self.dispatches: list[ev.Dispatch] = []
        self.started: list[int] = []  # tokens, in order
        self.outcome = outcome
        self.answers = answers
        self._settings = settings
        self._cpu_millis = cpu_millis
        self._present_every_s = present_every_s
        self._sender = Sender(settings)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=machine_id)
        self._running: dict[int, ev.AssignAttempt] = {}

    def __enter__(self) -> Self:
        self._consumer = make_consumer(self._settings, group="played", committed=False)
        topic = self._settings.topic_prefix + DISPATCH.name
        places = [(topic, partition) for partition in range(self._settings.mailbox_partitions)]
        assign_at(self._consumer, offsets_at(self._consumer, places, OFFSET_END))
        self._send(
            MACHINES,
            cmd.MachineRegistered(
                machine_id=self.machine_id,
                session=self.session,
                boot_id="boot",
                resources=Resources(cpu_millis=self._cpu_millis, memory_mib=64 * 1024),
            ),
        )
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(PATIENCE_S)
        self._consumer.close()

    def report(self, assigned: ev.AssignAttempt, outcome: str, **changes: object) -> None:
        """Report the end of an attempt, as the agent or, with changes, as somebody else would."""
        content = {
            "tenant": assigned.tenant,
            "job_id": assigned.job_id,
            "attempt": assigned.attempt,
            "token": assigned.token,
            "machine_id": self.machine_id,
            "session": self.session,
            "outcome": outcome,
            "exit_code": {"succeeded": 0, "failed": 1}.get(outcome),
            "started_at_ms": 1,
            "finished_at_ms": 2,
            **changes,
        }
        self._sender.send(COMPLETIONS, assigned.tenant, cmd.AttemptFinished.model_validate(content))
        self._running.pop(assigned.token, None)

    def _send(self, topic: Topic, message: Message) -> None:
        self._sender.send(topic, self.machine_id, message)

    def _run(self) -> None:
        number, present_at = 0, 0.0
        while not self._stop.is_set():
            if time.monotonic() >= present_at:
                number, present_at = number + 1, time.monotonic() + self._present_every_s
                self._send(
                    MACHINES, cmd.MachinePresent(machine_id=self.machine_id, session=self.session, number=number)
                )
                self._heartbeat(list(self._running.values()), number)
            for message in poll_batch(self._consumer, 0.05):
                dispatch = decode(from_headers(headers_of(message)).type, message.value())
                assert isinstance(dispatch, ev.Dispatch)
                if dispatch.machine_id == self.machine_id and dispatch.session == self.session:
                    self.dispatches.append(dispatch)
                    if self.answers:
                        self._answer(dispatch, number)
        self._sender.flush()

    def _answer(self, dispatch: ev.Dispatch, number: int) -> None:
        if isinstance(dispatch, ev.AssignAttempt):
            if dispatch.token in self.started:
                return  # sent again at a takeover
            self.started.append(dispatch.token)
            self._running[dispatch.token] = dispatch
            self._heartbeat([dispatch], number)
            if (outcome := self.outcome(dispatch)) is not None:
                self.report(dispatch, outcome)
        elif isinstance(dispatch, ev.CancelAttempt) and (assigned := self._running.get(dispatch.token)) is not None:
            self.report(assigned, "cancelled")

    def _heartbeat(self, attempts: list[ev.AssignAttempt], number: int) -> None:
        for attempt in attempts:
            held = (cmd.HeldLease(job_id=attempt.job_id, token=attempt.token, started_at_ms=1),)
            beat = cmd.LeaseHeartbeat(
                tenant=attempt.tenant, machine_id=self.machine_id, session=self.session, number=number, leases=held
            )
            self._sender.send(HEARTBEATS, attempt.tenant, beat)
