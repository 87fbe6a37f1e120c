"""One record of an inbox as the leader's core sees it. Pure: bytes and positions in, a message or a fault out."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from jobstream.schemas.base import Message
from jobstream.schemas.codec import decode
from jobstream.schemas.commands import (
    AttemptFinished,
    AttemptRefused,
    CancelJob,
    LeaderTick,
    LeaseHeartbeat,
    MachineGone,
    MachinePresent,
    MachineRegistered,
    MachineStopping,
    SubmitJob,
)
from jobstream.schemas.envelope import from_headers
from jobstream.schemas.errors import Unreadable
from jobstream.schemas.ids import OPAQUE_ID_PATTERN
from jobstream.topics.catalogue import COMPLETIONS, HEARTBEATS, MACHINES, SUBMISSIONS

# What may stand in which inbox; inboxes of upstream services are as `submissions`. Machines come first in a round, so
# that a machine which registers is there for the placements; reports before submissions, so that what is free is known.
ACCEPTED: Final[dict[str, frozenset[type[Message]]]] = {
    MACHINES.name: frozenset((MachineRegistered, MachinePresent, MachineStopping, MachineGone, LeaderTick)),
    HEARTBEATS.name: frozenset((LeaseHeartbeat, LeaderTick)),
    COMPLETIONS.name: frozenset((AttemptFinished, AttemptRefused, LeaderTick)),
    SUBMISSIONS.name: frozenset((SubmitJob, CancelJob)),
}
TOPIC_ORDER: Final = {name: order for order, name in enumerate(ACCEPTED)}
_ANSWERABLE: Final = re.compile(OPAQUE_ID_PATTERN)
# What can wait for the next round of the second: nothing is decided on it at once.
UNHURRIED: Final[frozenset[type[Message]]] = frozenset((MachinePresent, LeaderTick))


@dataclass(frozen=True, slots=True)
class Fault:
    """Why a record is a dead letter."""

    reason: str
    detail: str


class Input(NamedTuple):
    """One record. `topic` is without prefix; `appended_ms` is the broker's time; `raw` is kept for a dead letter."""

    topic: str
    partition: int
    offset: int
    appended_ms: int
    content: Message | Fault
    event_id: str
    type_name: str | None
    key: bytes | None
    raw: bytes | None

    @property
    def cause(self) -> str:
        return f"{self.topic}/{self.partition}/{self.offset}"

    @property
    def order(self) -> tuple[int, str, int, int]:
        """The order of a round's inputs, the same in replay however they arrived."""
        return TOPIC_ORDER[base_topic(self.topic)], self.topic, self.partition, self.offset


def split_cause(cause: str) -> tuple[str, int, int]:
    """Topic, partition and offset of an input from its `cause`."""
    topic, partition, offset = cause.rsplit("/", 2)
    return topic, int(partition), int(offset)


def base_topic(topic: str) -> str:
    """`submissions` for an upstream service's own inbox, else the topic itself."""
    return topic.partition(".")[0]


def producer_of(topic: str) -> str | None:
    """The upstream service of an inbox; None for our own."""
    return topic.partition(".")[2] or None


def read_input(
    topic: str,
    partition: int,
    offset: int,
    appended_ms: int,
    key: bytes | None,
    headers: Iterable[tuple[str, bytes | None]] | None,
    value: bytes | None,
) -> Input:
    """Read a record, however broken it is."""
    event_id, type_name = "", None
    content: Message | Fault
    try:
        envelope = from_headers(headers)
        event_id, type_name = envelope.id, envelope.type
        content = decode(envelope.type, value)
        if type(content) not in ACCEPTED[base_topic(topic)]:
            raise Unreadable("wrong_topic", f"{envelope.type} does not belong in {topic}")
        _check_key(content, key)
        if type(content) in ACCEPTED[SUBMISSIONS.name] and _ANSWERABLE.fullmatch(event_id) is None:
            raise Unreadable("envelope", f"the header ce_id, which the answer names, must match {OPAQUE_ID_PATTERN}")
    except Unreadable as error:
        content = Fault(error.reason, error.detail)
    return Input(topic, partition, offset, appended_ms, content, event_id, type_name, key, value)


def _check_key(content: Message, key: bytes | None) -> None:
    wanted = getattr(content, "tenant", None) or getattr(content, "machine_id", None)
    if wanted is not None and key != wanted.encode():
        raise Unreadable("key", f"the record's key is not {wanted!r}, the tenant or machine that the value names")
