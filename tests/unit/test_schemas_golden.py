"""Recorded samples of every version of every message are read as they were meant, for good."""

from pathlib import Path

import orjson
import pytest
from tests.support.samples import SAMPLES, golden_files

from jobstream.schemas.codec import MESSAGES, decode, encode
from jobstream.schemas.upcasts import UPCASTS


@pytest.mark.parametrize("path", golden_files(), ids=lambda path: path.stem)
def test_a_recorded_sample_is_read_and_written_again_the_same(path: Path) -> None:
    value = path.read_bytes()
    message = decode(path.stem, value)
    if path.stem in UPCASTS:  # an old version: read as a newer one, never written again
        assert path.stem != message.TYPE
        return
    assert message == SAMPLES[path.stem]
    assert orjson.loads(encode(message)) == orjson.loads(value)


def test_every_message_that_was_ever_written_has_a_sample() -> None:
    assert {path.stem for path in golden_files()} >= {*MESSAGES, *UPCASTS}


@pytest.mark.parametrize("name", MESSAGES)
def test_a_sample_sets_every_field(name: str) -> None:
    """Else a field that is renamed would go unnoticed. `JobCompleted` has no signal, which it cannot have."""
    written = orjson.loads(encode(SAMPLES[name]))
    assert set(written) == set(MESSAGES[name].model_fields)
