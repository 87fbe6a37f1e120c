"""A dead letter: what could not be read, with its position and the reason, for operators."""

import base64
from typing import Final

from jobstream.runtime.clock import wall_ms
from jobstream.schemas.codec import encode
from jobstream.schemas.envelope import Envelope, Headers, format_time, to_headers
from jobstream.schemas.errors import DETAIL_LENGTH_MAX
from jobstream.schemas.events import DeadLetter
from jobstream.schemas.new_ids import new_event_id

VALUE_KEPT_MAX: Final = 64 * 1024  # of the original's bytes
KEY_KEPT_MAX: Final = 1_024
SOURCE: Final = "/jobstream/dead-letters"


def dead_letter(
    topic: str,
    partition: int,
    offset: int,
    reason: str,
    detail: str,
    type_name: str | None,
    key: bytes | None,
    value: bytes | None,
) -> tuple[bytes | None, bytes, Headers]:
    """Key, value and headers of the dead letter of one record; `topic` is without the prefix."""
    letter = DeadLetter(
        topic=topic,
        partition=partition,
        offset=offset,
        reason=reason,
        detail=detail[:DETAIL_LENGTH_MAX],  # else it could be too large to be written, and nothing would go on
        type=type_name[:200] if type_name is not None else None,
        value_size=len(value or b""),
        key_base64=base64.b64encode(key[:KEY_KEPT_MAX]).decode() if key is not None else None,
        value_base64=base64.b64encode(value[:VALUE_KEPT_MAX]).decode() if value is not None else None,
    )
    envelope = Envelope(id=new_event_id(), type=DeadLetter.TYPE, source=SOURCE, time=format_time(wall_ms()))
    return (key[:KEY_KEPT_MAX] if key is not None else None), encode(letter), to_headers(envelope)
