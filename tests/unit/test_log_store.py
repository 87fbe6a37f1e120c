"""The log store on a local folder."""

import asyncio
from pathlib import Path

import pytest

from jobstream.runtime.errors import ConfigurationError, Unavailable
from jobstream.runtime.log_store import AttemptLog, LogEnd, LogStore
from jobstream.schemas.new_ids import new_job_id


def attempt_log(**other: object) -> AttemptLog:
    parts: dict[str, object] = {"tenant": "acme", "job_id": new_job_id(), "attempt": 1, "token": 65_536}
    return AttemptLog(**{**parts, **other})  # type: ignore[arg-type]


def test_chunks_are_read_back_by_number_and_listed_in_order(tmp_path: Path) -> None:
    store, log = LogStore((tmp_path / "a b" / "logs").as_uri()), attempt_log()
    for number in range(11):
        store.write_chunk(log, number, b"%d\n" % number)
    assert store.read_end(log) is None
    store.write_end(log, LogEnd(bytes=24, cut=False, chunks=11))
    assert store.read_chunk(log, 10) == b"10\n"
    assert store.read_chunk(log, 11) is None
    assert store.list_chunks(log, first=8) == [(8, 2), (9, 2), (10, 3)]
    assert store.read_end(log) == LogEnd(bytes=24, cut=False, chunks=11)
    path = tmp_path / "a b" / "logs" / "acme" / log.job_id / "1-65536" / "00000010.log"
    assert path.read_bytes() == b"10\n"


def test_async_reading_equals_blocking_reading(tmp_path: Path) -> None:
    store, log = LogStore(tmp_path.as_uri()), attempt_log()
    store.write_chunk(log, 0, b"\xff\x00")

    async def read() -> tuple[bytes | None, bytes | None, LogEnd | None, list[tuple[int, int]]]:
        return (
            await store.read_chunk_async(log, 0),
            await store.read_chunk_async(log, 1),
            await store.read_end_async(log),
            await store.list_chunks_async(log),
        )

    assert asyncio.run(read()) == (b"\xff\x00", None, None, [(0, 2)])


def test_attempts_of_which_one_number_starts_with_the_other_stay_apart(tmp_path: Path) -> None:
    store, job_id = LogStore(tmp_path.as_uri()), new_job_id()
    store.write_chunk(attempt_log(job_id=job_id, token=12), 0, b"x")
    assert store.list_chunks(attempt_log(job_id=job_id, token=1)) == []


@pytest.mark.parametrize(
    "other",
    [
        {"tenant": "../../etc"},
        {"tenant": "..%2f..%2fetc%2fpasswd"},
        {"tenant": "acme\n"},
        {"tenant": ""},
        {"tenant": "a" * 300},
        {"job_id": "../../x"},
        {"job_id": "0190f0f0-0000-7000-8000-000000000000\n"},
        {"job_id": "0190F0F0-0000-7000-8000-000000000000"},
        {"attempt": -1},
        {"token": 2**63},
    ],
)
def test_what_is_no_id_makes_no_path(other: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        attempt_log(**other)


@pytest.mark.parametrize("number", [-1, 100_000_000])
def test_chunk_numbers_have_eight_digits(number: int) -> None:
    with pytest.raises(ValueError):
        attempt_log().chunk(number)


@pytest.mark.parametrize("url", ["memory:///", "logs", "file://host/logs", "ftp://x/y", "file:relative", ""])
def test_a_store_that_cannot_be_shared_or_opened_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError):
        LogStore(url)


def test_a_store_that_fails_is_unavailable_with_the_path(tmp_path: Path) -> None:
    store, log = LogStore(tmp_path.as_uri()), attempt_log()
    (tmp_path / "acme").write_text("a file where a folder is needed")
    with pytest.raises(Unavailable, match=log.job_id):
        store.write_chunk(log, 0, b"x")


def test_end_marker_that_cannot_be_read_is_said_clearly(tmp_path: Path) -> None:
    store, log = LogStore(tmp_path.as_uri()), attempt_log()
    (tmp_path / log.end).parent.mkdir(parents=True)
    for content in (b"{", b"[]", b'{"bytes": "x"}'):
        (tmp_path / log.end).write_bytes(content)
        with pytest.raises(Unavailable, match="end marker"):
            store.read_end(log)
