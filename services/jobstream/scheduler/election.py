"""Who leads a cell: the owner of its partition of `rounds` in one consumer group. Owning is not yet leading."""

import logging

from confluent_kafka import OFFSET_END, Consumer, KafkaException, TopicPartition

from jobstream.runtime.config import Settings
from jobstream.runtime.errors import Unavailable
from jobstream.runtime.kafka import make_consumer
from jobstream.topics.catalogue import ROUNDS, full_name

log = logging.getLogger(__name__)

CELL_PARTITION = 0  # one cell today: more cells, more partitions of `rounds`


class Election:
    """This process's membership. `poll` must be called at least every `max.poll.interval.ms`.

    Cooperative, so that a member that joins leaves a healthy leader alone.
    """

    def __init__(self, settings: Settings) -> None:
        self.owned = False
        self._consumer = make_consumer(
            settings,
            group=f"{settings.topic_prefix}leader",
            committed=True,
            **{
                "partition.assignment.strategy": "cooperative-sticky",
                "session.timeout.ms": settings.leader_session_ms,
                "heartbeat.interval.ms": max(100, settings.leader_session_ms // 6),
                # A leader that hangs but heartbeats loses the partition too.
                "max.poll.interval.ms": max(10_000, settings.leader_session_ms),
            },
        )
        self._consumer.subscribe(
            [full_name(settings.topic_prefix, ROUNDS)],
            on_assign=self._assigned,
            on_revoke=self._gone,
            on_lost=self._gone,
        )

    def poll(self, timeout_s: float = 0.0) -> bool:
        """Take part; whether this process owns the cell."""
        try:
            message = self._consumer.poll(timeout_s)
        except KafkaException as error:
            raise Unavailable(f"the election cannot go on: {error.args[0].str()}") from error
        if message is not None and (problem := message.error()) is not None and problem.fatal():
            raise Unavailable(f"the election cannot go on: {problem.str()}")
        return self.owned

    def resign(self) -> None:
        """Leave the group, so that the next one need not wait for the session to end."""
        self.owned = False
        self._consumer.close()

    def _assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        # Nothing is read here: from the end, and paused.
        ours = [TopicPartition(p.topic, p.partition, OFFSET_END) for p in partitions]
        consumer.incremental_assign(ours)
        if ours:
            consumer.pause(ours)
        if any(p.partition == CELL_PARTITION for p in partitions):
            log.info("this process owns the cell")
            self.owned = True

    def _gone(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        if any(p.partition == CELL_PARTITION for p in partitions):
            log.info("this process does not own the cell any more")
            self.owned = False
        consumer.incremental_unassign(partitions)
