"""Play many machines: each dispatch is answered by a first heartbeat and a report, as an agent would. No processes."""

import sys
import time
from collections import defaultdict

from confluent_kafka import OFFSET_END, Producer

from jobstream.runtime.config import load_settings
from jobstream.runtime.kafka import assign_at, headers_of, make_consumer, make_producer, offsets_at, poll_batch
from jobstream.runtime.service import stop_on_signals
from jobstream.schemas.base import Message
from jobstream.schemas.codec import decode, encode
from jobstream.schemas.commands import (
    AttemptFinished,
    HeldLease,
    LeaseHeartbeat,
    MachinePresent,
    MachineRegistered,
)
from jobstream.schemas.envelope import Envelope, format_time, from_headers, to_headers
from jobstream.schemas.events import AssignAttempt
from jobstream.schemas.new_ids import new_event_id
from jobstream.schemas.resources import Resources
from jobstream.topics.catalogue import COMPLETIONS, DISPATCH, HEARTBEATS, MACHINES, Topic, full_name

SESSION = "bench"
PRESENT_EVERY_S = 15.0


def main(count: int) -> None:
    stop = stop_on_signals()
    settings = load_settings(replication_factor=1, unsafe_replication=True)
    producer = make_producer(settings, linger_ms=2)

    def send(topic: Topic, key: str, message: Message) -> None:
        envelope = Envelope(
            id=new_event_id(), type=message.TYPE, source="/bench", time=format_time(int(time.time() * 1000))
        )
        produce(producer, full_name(settings.topic_prefix, topic), key, encode(message), to_headers(envelope))

    consumer = make_consumer(settings, group="bench", committed=False)
    dispatch = full_name(settings.topic_prefix, DISPATCH)
    places = [(dispatch, partition) for partition in range(settings.mailbox_partitions)]
    assign_at(consumer, offsets_at(consumer, places, OFFSET_END))
    machines = [f"bench-{number}" for number in range(count)]
    capacity = Resources(cpu_millis=64_000, memory_mib=64 * 1024)
    for machine in machines:
        send(
            MACHINES,
            machine,
            MachineRegistered(machine_id=machine, session=SESSION, boot_id="bench", resources=capacity),
        )
    number, present_at = 0, 0.0
    while not stop.is_set():
        if time.monotonic() >= present_at:
            number, present_at = number + 1, time.monotonic() + PRESENT_EVERY_S
            for machine in machines:
                send(MACHINES, machine, MachinePresent(machine_id=machine, session=SESSION, number=number))
        started: dict[tuple[str, str], list[AssignAttempt]] = defaultdict(list)
        for message in poll_batch(consumer, 0.1):
            assigned = decode(from_headers(headers_of(message)).type, message.value())
            if isinstance(assigned, AssignAttempt):
                started[assigned.machine_id, assigned.tenant].append(assigned)
        now_ms = int(time.time() * 1000)
        for (machine, tenant), attempts in started.items():
            held = tuple(HeldLease(job_id=a.job_id, token=a.token, started_at_ms=now_ms) for a in attempts)
            beat = LeaseHeartbeat(tenant=tenant, machine_id=machine, session=SESSION, number=number, leases=held)
            send(HEARTBEATS, tenant, beat)
            for attempt in attempts:
                report = AttemptFinished(
                    tenant=tenant,
                    job_id=attempt.job_id,
                    attempt=attempt.attempt,
                    token=attempt.token,
                    machine_id=machine,
                    session=SESSION,
                    outcome="succeeded",
                    exit_code=0,
                    started_at_ms=now_ms,
                    finished_at_ms=now_ms,
                )
                send(COMPLETIONS, tenant, report)
    producer.flush(5)
    consumer.close()


def produce(producer: Producer, topic: str, key: str, value: bytes, headers: object) -> None:
    while True:
        try:
            producer.produce(topic, key=key.encode(), value=value, headers=headers)  # type: ignore[arg-type]
            producer.poll(0)
            return
        except BufferError:
            producer.poll(0.1)


if __name__ == "__main__":
    main(int(sys.argv[1]))
