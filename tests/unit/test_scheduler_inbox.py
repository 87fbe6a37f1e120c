"""What a reader of an inbox holds for the leader is bounded in bytes too, and so is what one round takes."""

from jobstream.scheduler.inbox import ROUND_BYTES_MAX, WAITING_BYTES_MAX, WAITING_MAX, Waiting
from jobstream.scheduler.inputs import Fault, Input

MIB = 1024 * 1024


def _record(offset: int, size: int) -> Input:
    return Input("submissions", 0, offset, 0, Fault("json", "no JSON"), "", None, None, bytes(size))


def test_large_records_fill_it_and_a_round_takes_few_in_order() -> None:
    waiting = Waiting()
    count = WAITING_BYTES_MAX // (4 * MIB) + 1
    for offset in range(count):
        assert not waiting.full
        waiting.extend([_record(offset, 4 * MIB)])
    assert waiting.full and waiting.size > WAITING_BYTES_MAX
    taken: list[int] = []
    while waiting:
        part = waiting.take(1_000)
        assert 1 <= len(part) <= ROUND_BYTES_MAX // (4 * MIB)
        taken += [record.offset for record in part]
    assert taken == list(range(count)) and waiting.size == 0


def test_one_record_that_is_larger_than_a_round_is_taken_all_the_same() -> None:
    waiting = Waiting()
    waiting.extend([_record(0, ROUND_BYTES_MAX + 1), _record(1, 1)])
    assert [record.offset for record in waiting.take(10)] == [0]
    assert [record.offset for record in waiting.take(10)] == [1]


def test_small_records_and_those_without_a_value_are_bounded_in_number() -> None:
    waiting = Waiting()
    waiting.extend([_record(offset, 10)._replace(raw=None) for offset in range(WAITING_MAX + 1)])
    assert waiting.full and waiting.size == 0
    assert len(waiting.take(7)) == 7 and not waiting.full
