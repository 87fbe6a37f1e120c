"""Of any log that a leader could write, in any cut: all of it is taken, and any damage is found where it is."""

from itertools import pairwise

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.leader_log import Entry, LeaderLog

from jobstream.projector.fold import Position, Record, fold

SLOW = settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow])


def partition_of_log(seed: int) -> list[Record]:
    """The records of one partition of `lifecycle`, with holes between the offsets as commits leave them."""
    found: list[Entry] = [
        entry for entry in LeaderLog(seed=seed, partitions=1).entries(25) if entry.topic == "lifecycle"
    ]
    return [Record(3 * number, entry.headers, entry.value) for number, entry in enumerate(found)]


@SLOW
@given(seed=st.integers(0, 10_000), data=st.data())
def test_any_cut_takes_all_of_it(seed: int, data: st.DataObject) -> None:
    records = partition_of_log(seed)
    cuts = sorted(data.draw(st.sets(st.integers(0, len(records)), max_size=6)) | {0, len(records)})
    position = Position(topic="lifecycle", partition=0)
    for first, after in pairwise(cuts):
        found = fold(position, records[first:after])
        assert found.broken is None
        position = found.after
    assert position == fold(Position(topic="lifecycle", partition=0), records).after
    assert position.next_sequence == len(records)


@SLOW
@given(seed=st.integers(0, 10_000), data=st.data(), damage=st.sampled_from(["lost", "repeated", "swapped", "garbled"]))
def test_any_damage_is_found_where_it_is(seed: int, data: st.DataObject, damage: str) -> None:
    records = partition_of_log(seed)
    at = data.draw(st.integers(0, len(records) - 2))
    damaged = list(records)
    if damage == "lost":
        del damaged[at]
    elif damage == "repeated":
        damaged.insert(at + 1, damaged[at])
        at += 1
    elif damage == "swapped":
        damaged[at : at + 2] = reversed(damaged[at : at + 2])
    else:
        damaged[at] = Record(damaged[at].offset, damaged[at].headers, (damaged[at].value or b"")[:-1])
    found = fold(Position(topic="lifecycle", partition=0), damaged)
    assert found.broken is not None
    assert found.after.next_sequence == at
    assert f"at offset {damaged[at].offset}:" in str(found.broken)
