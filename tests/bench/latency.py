"""From the submission event to the start of the process, on an idle local stack: the way through real transactions."""

import time
from pathlib import Path
from typing import Any

from confluent_kafka import OFFSET_END
from tests.bench.running import percentile, say, whole_stack

from jobstream.runtime.kafka import assign_at, headers_of, make_consumer, make_producer, offsets_at, poll_batch
from jobstream.schemas.codec import decode, encode
from jobstream.schemas.commands import JobSpec, SubmitJob
from jobstream.schemas.envelope import Envelope, format_time, from_headers, to_headers
from jobstream.schemas.events import JobCompleted, JobStarted
from jobstream.schemas.new_ids import new_event_id, new_job_id
from jobstream.schemas.resources import Resources
from jobstream.topics.catalogue import LIFECYCLE, SUBMISSIONS, full_name

JOBS = 300
WARM_UP = 150  # the broker is written in Java: it takes some hundred transactions to get up to speed
PER_SECOND = 10  # idle: one job at a time
WAIT_S = 60.0


def measure(folder: Path) -> dict[str, Any]:
    with whole_stack(folder, agents=1) as settings:
        say(f"{JOBS} jobs, {PER_SECOND} a second")
        producer = make_producer(settings)
        consumer = make_consumer(settings, group="bench", committed=True)
        lifecycle = full_name(settings.topic_prefix, LIFECYCLE)
        places = [(lifecycle, partition) for partition in range(settings.tenant_partitions)]
        assign_at(consumer, offsets_at(consumer, places, OFFSET_END))
        spec = JobSpec(name="latency", command=("true",), resources=Resources(cpu_millis=10, memory_mib=16))
        sent: dict[str, float] = {}
        started: dict[str, float] = {}

        def listen(seconds: float) -> None:
            end = time.monotonic() + seconds
            while (rest := end - time.monotonic()) > 0:
                for message in poll_batch(consumer, rest):
                    envelope = from_headers(headers_of(message))
                    if envelope.type not in (JobStarted.TYPE, JobCompleted.TYPE):
                        continue
                    fact = decode(envelope.type, message.value())
                    if isinstance(fact, JobStarted):
                        started[fact.job_id] = fact.started_at_ms / 1000
                    elif isinstance(fact, JobCompleted) and fact.end.started_at_ms is not None:
                        # a short job's report may be read before the heartbeat of its start
                        started[fact.job_id] = fact.end.started_at_ms / 1000

        listen(0.5)
        for _ in range(JOBS + WARM_UP):
            command = SubmitJob(tenant="default", job_id=new_job_id(), spec=spec)
            now = time.time()
            envelope = Envelope(
                id=new_event_id(), type=SubmitJob.TYPE, source="/bench", time=format_time(int(now * 1000))
            )
            sent[command.job_id] = now
            producer.produce(
                full_name(settings.topic_prefix, SUBMISSIONS),
                key=b"default",
                value=encode(command),
                headers=to_headers(envelope),
            )
            producer.poll(0)
            listen(1 / PER_SECOND)
        give_up = time.monotonic() + WAIT_S
        while len(started) < len(sent) and time.monotonic() < give_up:
            listen(0.1)
        consumer.close()
    measured = list(sent)[WARM_UP:]
    # the agent's clock counts whole milliseconds, cut off: half of one is added
    waits = sorted(1000 * (started[job] - sent[job]) + 0.5 for job in measured if job in started)
    return {
        "jobs": len(measured),
        "started": len(waits),
        "p50_ms": round(percentile(waits, 0.5), 1),
        "p99_ms": round(percentile(waits, 0.99), 1),
        "max_ms": round(waits[-1], 1),
    }
