"""The committed documents are those that the models and the catalogue give, and they are what they claim to be."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from tests.support.samples import SAMPLES

from jobstream.schemas.codec import MESSAGES, encode
from jobstream.topics.catalogue import LOG, TOPICS
from jobstream.topics.documents import CONTENTS, DOCUMENTS, STAMPED, documents, write_documents

ROOT = Path(__file__).parents[2]
ASYNCAPI: dict[str, Any] = json.loads((ROOT / DOCUMENTS / "asyncapi.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", documents(ROOT), ids=lambda path: path.name)
def test_a_committed_document_is_current(path: Path) -> None:
    assert path.read_bytes() == documents(ROOT)[path], "run `make generate`"


def test_no_document_is_left_over() -> None:
    assert set((ROOT / DOCUMENTS).iterdir()) == {path for path in documents(ROOT) if path.name != "README.md"}


@pytest.mark.parametrize("name", MESSAGES)
def test_a_schema_is_one_and_takes_the_sample(name: str) -> None:
    schema = json.loads((ROOT / DOCUMENTS / f"{name}.json").read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    validator.validate(json.loads(encode(SAMPLES[name])))
    with pytest.raises(jsonschema.ValidationError):
        validator.validate({})


def test_every_message_stands_in_a_topic_of_the_catalogue() -> None:
    assert {message.TYPE for messages in CONTENTS.values() for message in messages} == set(MESSAGES)
    assert set(CONTENTS) <= {topic.name for topic in TOPICS}
    assert set(STAMPED) == {topic.name for topic in LOG}


def references(document: Any) -> Iterator[str]:
    if isinstance(document, dict):
        for key, value in document.items():
            if key == "$ref":
                yield value
            yield from references(value)
    elif isinstance(document, list):
        for value in document:
            yield from references(value)


def test_every_reference_of_the_asyncapi_document_leads_somewhere() -> None:
    found = set(references(ASYNCAPI))
    assert {f"{name}.json" for name in MESSAGES} <= found
    for reference in found:
        file, _, pointer = reference.partition("#")
        target: Any = json.loads((ROOT / DOCUMENTS / file).read_text(encoding="utf-8")) if file else ASYNCAPI
        for part in pointer.split("/")[1:]:
            target = target[part]


def test_the_asyncapi_document_has_what_version_3_asks_for() -> None:
    assert ASYNCAPI["asyncapi"] == "3.0.0"
    assert {"title", "version"} <= set(ASYNCAPI["info"])
    for channel in ASYNCAPI["channels"].values():
        assert channel["address"] == channel["bindings"]["kafka"]["topic"]
    for operation in ASYNCAPI["operations"].values():
        assert operation["action"] in ("send", "receive")
        assert operation["channel"]["$ref"].removeprefix("#/channels/") in ASYNCAPI["channels"]


def test_writing_is_needed_once_and_takes_away_what_is_left_over(tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    readme.write_text("before\n<!-- topics:begin -->\nold\n<!-- topics:end -->\nafter\n", encoding="utf-8")
    left = tmp_path / DOCUMENTS / "gone.json"
    left.parent.mkdir(parents=True)
    left.write_text("{}", encoding="utf-8")
    written = write_documents(tmp_path)
    assert {readme, left, tmp_path / DOCUMENTS / "asyncapi.json"} <= set(written)
    assert not left.exists()
    text = readme.read_text(encoding="utf-8")
    assert text.startswith("before\n<!-- topics:begin -->\n| topic") and text.endswith("<!-- topics:end -->\nafter\n")
    assert write_documents(tmp_path) == []


def test_a_readme_without_its_markers_is_refused(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("<!-- topics:begin -->", encoding="utf-8")
    with pytest.raises(ValueError, match="topics:end"):
        write_documents(tmp_path)
