"""The documents that are generated: a JSON Schema of every message, one AsyncAPI 3.0 document, the README's topic table.

They are committed; a test holds them equal to the models and the catalogue. `jobstream topics document` writes them anew.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import orjson

from jobstream.schemas import commands, events
from jobstream.schemas.base import Message
from jobstream.schemas.codec import MESSAGES
from jobstream.topics.catalogue import (
    CELLS,
    MAILBOX_PARTITIONS,
    TENANT_PARTITIONS,
    TOPICS,
    Topic,
    markdown_table,
    retention_words,
)

DOCUMENTS: Final = Path("schemas/documents")
BEGIN: Final = "<!-- topics:begin -->"
END: Final = "<!-- topics:end -->"
DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
SCHEMA_FORMAT: Final = "application/schema+json;version=draft-2020-12"
PREFIX: Final = "jobstream."

Document = dict[str, Any]

# What stands in each topic. One message can be in several; each must be in one (a test counts them).
CONTENTS: Final[Mapping[str, tuple[type[Message], ...]]] = {
    "submissions": (commands.SubmitJob, commands.CancelJob),
    "completions": (commands.AttemptFinished, commands.AttemptRefused, commands.LeaderTick),
    "heartbeats": (commands.LeaseHeartbeat, commands.LeaderTick),
    "machines": (
        commands.MachineRegistered,
        commands.MachinePresent,
        commands.MachineStopping,
        commands.MachineGone,
        commands.LeaderTick,
    ),
    "lifecycle": events.LIFECYCLE_EVENTS,
    "fleet": events.FLEET_EVENTS,
    "dispatch": events.DISPATCHES,
    "rounds": (events.RoundCommitted,),
    "dead-letters": (events.DeadLetter,),
}
STAMPED: Final = ("lifecycle", "schedules", "fleet")  # the log: its records carry a sequence number

KEYS: Final = {
    "tenant": "The tenant.",
    "machine": "The machine's id.",
    "mailbox": "The machine's id; the partition is given: murmur2 of it, modulo the number of mailboxes.",
    "cell": "None; the partition is the cell.",
    "original": "That of the record that could not be read.",
}


def json_schema(message: type[Message]) -> Document:
    """What a reader accepts as the value of this message."""
    schema = message.model_json_schema(mode="validation")
    return {"$schema": DIALECT, "$id": f"urn:jobstream:{message.TYPE}", **schema}


def asyncapi() -> Document:
    """The topics with what is in them, as the system's users see them."""
    shown = [topic for topic in TOPICS if topic.name in CONTENTS]
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "jobstream",
            "version": "1.0.0",
            "description": "The topics of jobstream. Their prefix, `jobstream.` here, is a setting. Records are CloudEvents "
            "1.0 in Kafka's binary mode: attributes as headers, the value is the JSON of the data. Readers accept "
            "unknown fields; `ce_type` tells the message.",
            "license": {"name": "Apache-2.0"},
        },
        "defaultContentType": "application/json",
        "channels": {topic.name: _channel(topic) for topic in shown},
        "operations": {
            "submit": _operation("send", "submissions", "Ask for a job or its end. Answered in `lifecycle`."),
            **{
                f"follow-{topic.name}": _operation("receive", topic.name, f"Written by {_plain(topic.written_by)}.")
                for topic in shown
                if topic.name in ("lifecycle", "fleet", "rounds", "dead-letters")
            },
        },
        "components": {
            "messages": {name: _message(message) for name, message in sorted(MESSAGES.items())},
            "schemas": {"envelope": _headers(stamped=False), "stampedEnvelope": _headers(stamped=True)},
        },
    }


def write_documents(root: Path) -> list[Path]:
    """Write what differs in a checkout; returns the files that were written or removed."""
    wanted = documents(root)
    stale = [path for path in sorted((root / DOCUMENTS).glob("*.json")) if path not in wanted]
    changed = [path for path, text in wanted.items() if not path.exists() or path.read_bytes() != text]
    for path in changed:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(wanted[path])
    for path in stale:
        path.unlink()
    return changed + stale


def documents(root: Path) -> dict[Path, bytes]:
    """Every generated file of a checkout with its right content. Raises ValueError where the README has no markers."""
    folder = root / DOCUMENTS
    found = {folder / f"{name}.json": _json(json_schema(message)) for name, message in sorted(MESSAGES.items())}
    found[folder / "asyncapi.json"] = _json(asyncapi())
    readme = root / "README.md"
    before, begin, rest = readme.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{readme} has no lines {BEGIN} and {END}, between which the table of topics belongs")
    found[readme] = f"{before}{BEGIN}\n{markdown_table()}{END}{after}".encode()
    return found


def _json(document: Document) -> bytes:
    return orjson.dumps(document, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def _plain(words: str) -> str:
    return words.replace("**", "")


def _channel(topic: Topic) -> Document:
    partitions = {"mailbox": MAILBOX_PARTITIONS, "cell": CELLS}.get(topic.key, TENANT_PARTITIONS)
    return {
        "address": PREFIX + topic.name,
        "description": f"Written by {_plain(topic.written_by)}. Read by {topic.read_by}. Kept {retention_words(topic)}.",
        "messages": {
            message.TYPE: {"$ref": f"#/components/messages/{message.TYPE}"} for message in CONTENTS[topic.name]
        },
        "bindings": {
            "kafka": {
                "topic": PREFIX + topic.name,
                "partitions": partitions,
                "topicConfiguration": {"cleanup.policy": ["delete"], "retention.ms": topic.retention_ms},
                "bindingVersion": "0.5.0",
            }
        },
    }


def _operation(action: str, channel: str, summary: str) -> Document:
    return {"action": action, "channel": {"$ref": f"#/channels/{channel}"}, "summary": summary}


def _message(message: type[Message]) -> Document:
    topics = [topic for topic in TOPICS if message in CONTENTS.get(topic.name, ())]
    stamped = any(topic.name in STAMPED for topic in topics)
    keys = dict.fromkeys(KEYS[topic.key] for topic in topics)
    return {
        "name": message.TYPE,
        "title": message.__name__,
        "summary": " ".join((message.__doc__ or "").split()),
        "contentType": "application/json",
        "headers": {"$ref": f"#/components/schemas/{'stampedEnvelope' if stamped else 'envelope'}"},
        "payload": {"schemaFormat": SCHEMA_FORMAT, "schema": {"$ref": f"{message.TYPE}.json"}},
        "bindings": {
            "kafka": {"key": {"type": "string", "description": " Or: ".join(keys)}, "bindingVersion": "0.5.0"}
        },
    }


def _headers(*, stamped: bool) -> Document:
    """The headers of a record. Kafka's are bytes: numbers are decimal digits."""
    properties = {
        "ce_specversion": {"const": "1.0"},
        "ce_id": {"type": "string"},
        "ce_type": {"type": "string"},
        "ce_source": {"type": "string"},
        "ce_time": {"type": "string", "format": "date-time"},
        "content-type": {"const": "application/json"},
        "traceparent": {"type": "string", "description": "W3C trace context, passed through."},
    }
    required = ["ce_id", "ce_type", "ce_source"]
    if stamped:
        digits = {"type": "string", "pattern": "^[0-9]+$"}
        properties |= {
            "ce_sequence": digits | {"description": "Dense in the partition, from 0: a gap or a repeat is an alarm."},
            "ce_epoch": digits | {"description": "The leader's term."},
            "ce_round": digits,
            "ce_index": digits | {"description": "In the round, from 0."},
            "ce_cause": {"type": "string", "description": "`topic/partition/offset` that is answered, or `state`."},
        }
        required += ["ce_time", "ce_sequence", "ce_epoch", "ce_round", "ce_index", "ce_cause"]
    return {"type": "object", "properties": properties, "required": required}
