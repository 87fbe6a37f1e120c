"""Bytes to models and back: the only place where messages are written and read.

`decode` raises `Unreadable` with one of the reasons `too_large`, `empty`, `json`, `text`, `unknown_type`, `schema`.
"""

import hashlib
from collections.abc import Iterable, Mapping
from typing import Final

import orjson
from pydantic import ValidationError

from jobstream.schemas import upcasts
from jobstream.schemas.base import Message, Model
from jobstream.schemas.commands import INBOX_MESSAGES, JobSpec
from jobstream.schemas.errors import Unreadable
from jobstream.schemas.events import DISPATCHES, FLEET_EVENTS, LIFECYCLE_EVENTS, DeadLetter, RoundCommitted

VALUE_BYTES_MAX: Final = 1024 * 1024  # what our writers stop at; topics take four times that
DETAIL_LENGTH_MAX: Final = 500

_ALL: Final[tuple[type[Message], ...]] = (
    *INBOX_MESSAGES,
    *LIFECYCLE_EVENTS,
    *FLEET_EVENTS,
    RoundCommitted,
    *DISPATCHES,
    DeadLetter,
)
MESSAGES: Final[dict[str, type[Message]]] = {message.TYPE: message for message in _ALL}


def encode(message: Model) -> bytes:
    """The JSON of a message or of a part of one, without what is at its default: a reader has the same defaults."""
    # pydantic's own serializer: orjson on `model_dump()` writes the same and takes three times as long (measured)
    return message.__pydantic_serializer__.to_json(message, exclude_defaults=True)


def encode_with_spec(fields: Mapping[str, object], spec_json: bytes) -> bytes:
    """The JSON of an AssignAttempt from its other fields and a JobSpec that is JSON already: it is parsed only once."""
    return orjson.dumps({**fields, "spec": orjson.Fragment(spec_json)})


def decode(type_name: str, value: bytes | None) -> Message:
    """Read one value of a known type; raises Unreadable."""
    if not value:
        raise Unreadable("empty", "the value is empty")
    if len(value) > VALUE_BYTES_MAX:
        raise Unreadable("too_large", f"the value has {len(value)} bytes; {VALUE_BYTES_MAX} at most")
    content = parse_json(value)
    type_name, content = upcasts.upcast(type_name, content)
    model = MESSAGES.get(type_name)
    if model is None:
        raise Unreadable("unknown_type", f"no message has the type {type_name[:200]!r}")
    try:
        return model.model_validate(content)
    except ValidationError as error:
        raise Unreadable("schema", describe(error)) from None


def parse_json(value: bytes) -> object:
    """Strict JSON: UTF-8, no NaN, no lone surrogates, and no NUL in any text, since Postgres takes none."""
    try:
        content: object = orjson.loads(value)
    except orjson.JSONDecodeError as error:
        raise Unreadable("json", str(error)[:DETAIL_LENGTH_MAX]) from None
    if b"\\u0000" in value and has_nul(content):
        raise Unreadable("text", "a text holds the character U+0000")
    return content


def has_nul(content: object) -> bool:
    """Whether any text in parsed JSON holds U+0000. Without recursion: depth is the sender's choice."""
    stack: list[object] = [content]
    while stack:
        item = stack.pop()
        if isinstance(item, str):
            if "\x00" in item:
                return True
        elif isinstance(item, list):
            stack.extend(item)
        elif isinstance(item, dict):
            stack.extend(item)
            stack.extend(item.values())
    return False


def describe(error: ValidationError) -> str:
    """The first few faults as "field: what is wrong", without the values, which may be secret or huge."""
    faults = error.errors(include_url=False, include_input=False, include_context=False)
    told = [f"{'.'.join(str(part) for part in fault['loc']) or 'body'}: {fault['msg']}" for fault in faults[:5]]
    if len(faults) > len(told):
        told.append(f"and {len(faults) - len(told)} more")
    return "; ".join(told)[:DETAIL_LENGTH_MAX]


def digest_of(spec: JobSpec) -> str:
    """32 hex digits that tell whether two submissions ask for the same. New fields at their default change nothing."""
    return hashlib.blake2b(encode(spec), digest_size=16).hexdigest()


def types(messages: Iterable[type[Message]]) -> frozenset[str]:
    return frozenset(message.TYPE for message in messages)
