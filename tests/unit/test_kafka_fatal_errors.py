"""A client's fatal error ends neither the thread that serves it nor the process, in either form that it comes in."""

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from jobstream.api import submit
from jobstream.runtime.config import Settings
from jobstream.runtime.errors import LeadershipLost
from jobstream.runtime.kafka import told
from jobstream.scheduler import journal
from jobstream.scheduler.rounds import Round
from jobstream.schemas.events import RoundCommitted


def fenced(*, in_callback: bool) -> KafkaException | SystemError:
    error = KafkaException(KafkaError(KafkaError._FENCED, "fenced by a newer instance", True))
    if not in_callback:
        return error
    outer = SystemError("a callback returned a result with an exception set")
    outer.__cause__ = error
    return outer


@pytest.mark.parametrize("in_callback", [False, True])
def test_a_leader_that_is_fenced_in_a_round_has_lost_its_leadership(
    monkeypatch: pytest.MonkeyPatch, in_callback: bool
) -> None:
    class Fenced:
        def __init__(self, *_: Any, **__: Any) -> None: ...

        def __getattr__(self, name: str) -> Any:
            return lambda *_, **__: None

        def flush(self, timeout_s: float) -> int:
            raise fenced(in_callback=in_callback)

    monkeypatch.setattr(journal, "Producer", Fenced)
    monkeypatch.setattr(journal, "make_producer", Fenced)
    record = RoundCommitted.model_construct(round=1)
    monkeypatch.setattr(journal, "encode", lambda message: b"{}")
    with pytest.raises(LeadershipLost, match="fenced"):
        journal.Journal(Settings()).commit(Round(1, 1, 0, record=record))


def test_a_system_error_of_another_cause_stays_one() -> None:
    with pytest.raises(SystemError, match="other"):
        told(SystemError("other"))


@pytest.mark.parametrize("in_callback", [False, True])
def test_the_api_replaces_a_producer_that_has_failed_for_good(
    monkeypatch: pytest.MonkeyPatch, in_callback: bool
) -> None:
    served = threading.Event()

    def fail(timeout_s: float) -> int:
        raise fenced(in_callback=in_callback)

    def serve(timeout_s: float) -> int:
        served.set()
        return 0

    producers = [SimpleNamespace(poll=poll, flush=lambda timeout_s: 0) for poll in (fail, serve)]
    monkeypatch.setattr(submit, "make_producer", lambda *_, **__: producers.pop(0))
    commands = submit.Commands(Settings())

    async def start() -> None:
        commands.start()

    asyncio.run(start())
    assert served.wait(5)
    commands.stop()
