"""murmur2 as Kafka's Java client has it: its own vectors, as signed 32-bit numbers."""

import pytest

from jobstream.topics.partitioning import murmur2, partition_of


@pytest.mark.parametrize(
    ("text", "signed"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_the_hash_is_kafkas(text: bytes, signed: int) -> None:
    assert murmur2(text) == signed % 2**32


def test_a_key_keeps_its_partition() -> None:
    assert [partition_of(key, 32) for key in ("foobar", "21", "abc")] == [
        (hashed & 0x7FFFFFFF) % 32 for hashed in (-790332482, -973932308, 479470107)
    ]
    assert {partition_of(f"tenant-{n}", 4) for n in range(100)} == {0, 1, 2, 3}
