"""A dead letter can always be written, whatever it tells of: one that were too large would stop who writes it for good."""

from jobstream.runtime.dead_letters import KEY_KEPT_MAX, VALUE_KEPT_MAX, dead_letter
from jobstream.schemas.codec import VALUE_BYTES_MAX, decode
from jobstream.schemas.events import DeadLetter

HUGE = 4 * 1024 * 1024


def test_a_dead_letter_is_small_however_large_the_record_and_what_is_said_of_it() -> None:
    key, value, _ = dead_letter(
        "submissions", 3, 9, "envelope", "\\\x01" * HUGE, "\x01" * HUGE, b"\xff" * HUGE, b"\x00" * HUGE
    )
    assert len(value) < VALUE_BYTES_MAX
    assert key is not None and len(key) == KEY_KEPT_MAX
    letter = decode(DeadLetter.TYPE, value)
    assert isinstance(letter, DeadLetter)
    assert (letter.topic, letter.partition, letter.offset, letter.value_size) == ("submissions", 3, 9, HUGE)
    assert letter.value_base64 is not None and len(letter.value_base64) * 3 // 4 - VALUE_KEPT_MAX in (0, 1, 2)
