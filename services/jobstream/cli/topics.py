"""Commands on the catalogue of topics: show it, make it, check it, document it."""

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, TypeVar

from cyclopts import App, Parameter

from jobstream.cli.output import Json, print_json, print_table
from jobstream.cli.services import ServiceFlags, settings_of
from jobstream.runtime.errors import ConfigurationError

Result = TypeVar("Result")

app = App(name="topics", help="List, make, check and document the Kafka topics.")


@app.command(name="list")
def list_topics(*, json: Json = False, flags: ServiceFlags | None = None) -> None:
    """Print the catalogue: who writes what, under which key, for whom, kept how long."""
    from jobstream.topics.catalogue import full_name, retention_words

    plan = settings_of(flags).plan()
    topics = plan.topics()
    if json:
        described = [
            {**asdict(topic), "name": full_name(plan.prefix, topic), "partitions": plan.partitions(topic)}
            for topic in topics
        ]
        print_json({"topics": described})
        return
    print_table(
        ("topic", "partitions", "key", "kept", "written by", "read by"),
        (
            (
                full_name(plan.prefix, topic),
                plan.partitions(topic),
                topic.key,
                retention_words(topic),
                topic.written_by.replace("**", "").replace("`", ""),
                topic.read_by,
            )
            for topic in topics
        ),
    )


@app.command
def provision(*, json: Json = False, flags: ServiceFlags | None = None) -> None:
    """Make what is missing and correct what differs. Refuses, before any change, what would move keys."""
    from jobstream.topics import provisioning

    changes = _asked(lambda admin, plan: provisioning.provision(admin, plan), flags)
    if json:
        print_json({"changes": changes})
        return
    for change in changes:
        print(change)
    if not changes:
        print("every topic is there and as it should be")


@app.command
def verify(*, json: Json = False, flags: ServiceFlags | None = None) -> int:
    """Tell how the cluster differs from the catalogue; the exit code is 1 when it does."""
    from jobstream.topics import provisioning

    differences = _asked(lambda admin, plan: provisioning.verify(admin, plan), flags)
    if json:
        print_json({"differences": differences})
    else:
        for difference in differences:
            print(difference)
        if not differences:
            print("every topic is as it should be")
    return 1 if differences else 0


@app.command
def document(*, root: Annotated[Path | None, Parameter(help="The checkout; default: here.")] = None) -> None:
    """Write the JSON Schemas, the AsyncAPI document and the README's topic table of a checkout anew."""
    from jobstream.topics.documents import write_documents

    where = root or Path.cwd()
    if not (where / "topics").is_dir():
        raise ConfigurationError(
            f"{where} is no checkout of jobstream: run this where README.md and topics/ are, or give --root"
        )
    for path in write_documents(where) or ():
        print(path)


def _asked(question: Callable[[Any, Any], Result], flags: ServiceFlags | None) -> Result:
    """The answer of a cluster, or an error in words."""
    from jobstream.runtime.kafka import ask_cluster
    from jobstream.topics.provisioning import TopicsDiffer

    settings = settings_of(flags)
    try:
        return ask_cluster(settings, lambda admin: question(admin, settings.plan()))
    except TopicsDiffer as error:
        raise ConfigurationError(f"nothing was changed: {error}") from None
