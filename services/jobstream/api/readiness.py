"""Whether requests can be served: Kafka and Postgres answer, the topics and the tables are there."""

import asyncio
import time
from collections.abc import Mapping
from typing import Final

from confluent_kafka import KafkaException

from jobstream.api import queries
from jobstream.api.database import Database
from jobstream.api.problems import Problem
from jobstream.api.submit import Commands
from jobstream.runtime.config import Settings
from jobstream.topics.catalogue import TOPICS, full_name

KEPT_S: Final = 1.0  # whoever asks more often gets the last answer: probes are no load
METADATA_TIMEOUT_S: Final = 3.0
# The newest migrations that our statements need. A newer database is fine: it is migrated before old processes stop.
PROJECTION_MIGRATION: Final = 1
PRIVATE_MIGRATION: Final = 2
OK: Final = "ok"

Checks = Mapping[str, str]  # what is checked → "ok", or what is wrong


class Readiness:
    def __init__(self, settings: Settings, database: Database, commands: Commands) -> None:
        self._topics = frozenset(full_name(settings.topic_prefix, topic) for topic in TOPICS)
        self._database = database
        self._commands = commands
        self._lock = asyncio.Lock()
        self._kept: tuple[float, Checks] = (0.0, {})

    async def checks(self) -> Checks:
        async with self._lock:
            if self._kept[0] <= time.monotonic():
                kafka, postgres = await asyncio.gather(self._kafka(), self._postgres())
                self._kept = (time.monotonic() + KEPT_S, {"kafka": kafka, "postgres": postgres})
            return self._kept[1]

    async def _kafka(self) -> str:
        try:
            metadata = await asyncio.to_thread(self._commands.metadata, METADATA_TIMEOUT_S)
        except KafkaException as error:
            return f"Kafka does not answer: {error.args[0].str()}"
        missing = sorted(self._topics - {name for name, topic in metadata.topics.items() if topic.error is None})
        return f"topics are missing ({', '.join(missing)}); run `jobstream topics provision`" if missing else OK

    async def _postgres(self) -> str:
        needed = (
            (queries.NEWEST_MIGRATION, PROJECTION_MIGRATION),
            (queries.NEWEST_PRIVATE_MIGRATION, PRIVATE_MIGRATION),
        )
        try:
            for query, number in needed:
                if (await self._database.rows(query))[0]["number"] < number:
                    return "the database is not migrated; run `jobstream migrate`"
        except Problem as problem:
            return problem.detail
        return OK
