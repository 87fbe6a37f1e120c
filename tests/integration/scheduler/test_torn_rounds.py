"""A round of which only some facts are visible: they are facts, and nothing that they answered is answered again."""

import pytest
from tests.integration.scheduler.conftest import PARTITIONS, StartService
from tests.support.leader_log import Entry
from tests.support.played_machine import PATIENCE_S, Sender
from tests.support.projecting import Log, wait_until
from tests.support.written_log import read_log

from jobstream.runtime.config import Settings
from jobstream.schemas import events as ev
from jobstream.schemas.codec import digest_of
from jobstream.schemas.commands import JobSpec
from jobstream.schemas.envelope import Stamp
from jobstream.schemas.resources import Resources
from jobstream.topics.partitioning import partition_of

TENANT = "acme"


def wait_for_jobs(settings: Settings, count: int) -> None:
    wait_until(settings, lambda connection: connection.execute("SELECT count(*) FROM jobs").fetchone() == (count,))


@pytest.mark.parametrize("projected", [True, False], ids=["projected", "in the log alone"])
def test_what_a_torn_round_answered_is_not_answered_again(
    settings: Settings, start: StartService, projected: bool
) -> None:
    sender = Sender(settings)
    projector = start("projector")
    first = start("scheduler")
    sender.submit(TENANT)
    sender.flush()
    wait_for_jobs(settings, 1)
    first.terminate()
    assert first.wait(PATIENCE_S) == 0
    if not projected:
        projector.terminate()
        projector.wait(PATIENCE_S)

    torn, untouched = sender.submit(TENANT), sender.submit(TENANT)
    sender.flush()
    before = read_log(settings)
    spec = JobSpec(name="test", command=("true",), resources=Resources(cpu_millis=1000, memory_mib=64))
    fact = ev.JobAccepted(tenant=TENANT, job_id=torn, command_id="torn", digest=digest_of(spec), spec=spec)
    newest = before.rounds[-1]
    partition = partition_of(TENANT, PARTITIONS)
    stamp = Stamp(
        sequence=sum(1 for entry, _ in before.entries if (entry.topic, entry.partition) == ("lifecycle", partition)),
        epoch=newest.epoch,
        round=newest.round + 1,
        index=0,
        cause=f"submissions/{partition}/1",
        at_ms=newest.now_ms + 1,
    )
    entry = Entry(topic="lifecycle", partition=partition, key=TENANT, event=fact, stamp=stamp)
    Log(settings).write([[entry]])  # without the round's record: it was torn off
    if projected:
        wait_for_jobs(settings, 2)

    start("scheduler")
    if not projected:
        start("projector")
    wait_for_jobs(settings, 3)
    log = read_log(settings)
    log.check(PARTITIONS)
    accepted = [event.job_id for event in log.of(ev.JobAccepted)]
    assert accepted[1:] == [torn, untouched]
    assert not log.of(ev.SubmissionRepeated)
    assert log.rounds[-1].round > stamp.round
