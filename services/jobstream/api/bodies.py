"""From the bytes of a request to strict JSON. Pure."""

import json
from collections.abc import Mapping
from typing import Any, Final

import orjson

from jobstream.api.problems import Problem, field_name, invalid
from jobstream.schemas.codec import parse_json
from jobstream.schemas.errors import Unreadable

BODY_BYTES_MAX: Final = 1024 * 1024
ITEMS_LOOKED_AT_MAX: Final = 10_000  # a body of a megabyte holds half a million; all other requests wait meanwhile


class _Repeated(Exception):
    pass


def parse_object(body: bytes) -> dict[str, Any]:
    """The JSON object of a body; raises Problem. What a reader could take for another value is refused.

    No NaN, no number that overflows, no lone surrogates, no U+0000 in texts, no name twice in one object.
    """
    if not body:
        raise Problem(400, "the body is empty; a JSON object is needed")
    try:
        content = parse_json(body)
    except Unreadable as error:
        if error.reason == "text":
            raise invalid([(_field_with_nul(body), "has the character U+0000, which no text may have")]) from None
        raise Problem(400, f"the body is no JSON that can be used: {error.detail}") from None
    if not isinstance(content, dict):
        raise Problem(400, "the body is no JSON object")
    _refuse_repeated_names(body)
    return content


def _refuse_repeated_names(body: bytes) -> None:
    """orjson keeps the last of equal names without a word; another reader may keep the first."""
    try:
        json.loads(body, object_pairs_hook=_object)
    except _Repeated as error:
        raise invalid([(str(error), "is given twice in one object")]) from None
    except RecursionError:
        raise Problem(400, "the body is no JSON that can be used: depth limit exceeded") from None
    except ValueError as error:  # what orjson reads as a float and this reader does not take
        raise Problem(400, f"the body is no JSON that can be used: {str(error)[:200]}") from None


def _object(pairs: list[tuple[str, Any]]) -> Mapping[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise _Repeated(name)
            seen.add(name)
    return found


_Path = tuple["_Path | None", str | int]  # linked to its parent: copies of deep paths would take gigabytes


def _field_with_nul(body: bytes) -> str:
    """Where a text with U+0000 is; "body" where that takes long. Without recursion: depth is the sender's choice."""
    stack: list[tuple[_Path | None, Any]] = [(None, orjson.loads(body))]
    for _ in range(ITEMS_LOOKED_AT_MAX):
        if not stack:
            break
        path, item = stack.pop()
        if isinstance(item, str) and "\x00" in item:
            return _name(path)
        if isinstance(item, list):
            stack.extend(((path, at), value) for at, value in enumerate(item))
        elif isinstance(item, dict):
            if any("\x00" in name for name in item):
                return _name(path)
            stack.extend(((path, name), value) for name, value in item.items())
    return _name(None)


def _name(path: _Path | None) -> str:
    parts: list[str | int] = []
    while path is not None:
        path, part = path
        parts.append(part)
    return field_name(reversed(parts))
