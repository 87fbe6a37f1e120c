"""What a real leader has written, read back from the broker, and what must hold of it."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, KafkaError, Message
from tests.support.leader_log import Entry

from jobstream.runtime.config import Settings
from jobstream.runtime.kafka import assign_at, headers_of, make_consumer, offsets_at, partitions_of, poll_batch
from jobstream.scheduler.evolve import evolve
from jobstream.scheduler.state import State
from jobstream.schemas import events as ev
from jobstream.schemas.codec import decode
from jobstream.schemas.envelope import Envelope, from_headers
from jobstream.topics.catalogue import DEAD_LETTERS, LOG, ROUNDS, Topic

TERMINAL = (ev.JobCompleted, ev.JobFailed, ev.JobCancelled)


@dataclass(frozen=True)
class WrittenLog:
    """The facts in the order of (round, index), each with its offset; the rounds."""

    entries: list[tuple[Entry, int]]
    rounds: list[ev.RoundCommitted]

    def of(self, *kinds: type[ev.JobEvent]) -> list[ev.JobEvent]:
        return [entry.event for entry, _ in self.entries if isinstance(entry.event, kinds)]

    def ends(self) -> Counter[tuple[str, str]]:
        """How many terminal events each job has."""
        return Counter((event.tenant, event.job_id) for event in self.of(*TERMINAL))

    def check(self, partitions: int) -> State:
        """Numbers are dense, tokens and rounds only grow, every input is answered once, and the facts follow one another.

        Returns the fold.
        """
        state = State(partitions=partitions)
        following: dict[tuple[str, int], int] = {}
        causes: Counter[str] = Counter()
        tokens: list[int] = []
        for entry, _ in self.entries:
            place = (entry.topic, entry.partition)
            assert entry.stamp.sequence == following.get(place, 0), f"{place} has a gap or a repeat at {entry.stamp}"
            following[place] = entry.stamp.sequence + 1
            if entry.stamp.cause != "state":
                causes[entry.stamp.cause] += 1
            if isinstance(entry.event, ev.JobAssigned):
                tokens.append(entry.event.token)
            evolve(state, entry.event, entry.stamp)
        assert not [cause for cause, count in causes.items() if count > 1], "an input was answered twice"
        assert tokens == sorted(set(tokens)), "fencing tokens repeat or go back"
        numbers = [record.round for record in self.rounds]
        assert numbers == sorted(set(numbers)), "rounds repeat or go back"
        return state


def read_log(settings: Settings) -> WrittenLog:
    """Everything committed in the log now."""
    entries: list[tuple[Entry, int]] = []
    rounds: list[ev.RoundCommitted] = []
    for message, envelope in read_all(settings, (*LOG, ROUNDS)):
        fact = decode(envelope.type, message.value())
        if isinstance(fact, ev.RoundCommitted):
            rounds.append(fact)
            continue
        assert envelope.stamp is not None
        topic = (message.topic() or "").removeprefix(settings.topic_prefix)
        entry = Entry(
            topic=topic,
            partition=message.partition() or 0,
            key=(message.key() or b"").decode(),
            event=fact,
            stamp=envelope.stamp,
        )
        entries.append((entry, message.offset() or 0))
    entries.sort(key=lambda pair: (pair[0].stamp.round, pair[0].stamp.index))
    return WrittenLog(entries, sorted(rounds, key=lambda record: record.round))


def read_dead_letters(settings: Settings) -> list[ev.DeadLetter]:
    letters = [decode(ev.DeadLetter.TYPE, message.value()) for message, _ in read_all(settings, (DEAD_LETTERS,))]
    return [letter for letter in letters if isinstance(letter, ev.DeadLetter)]


def read_all(settings: Settings, topics: Iterable[Topic]) -> list[tuple[Message, Envelope]]:
    """Every committed record of these topics up to their present ends."""
    consumer = make_consumer(settings, group="test", committed=True, **{"enable.partition.eof": True})
    found: list[tuple[Message, Envelope]] = []
    try:
        counts = partitions_of(consumer, [settings.topic_prefix + topic.name for topic in topics])
        places = [(topic, partition) for topic, count in counts.items() for partition in range(count)]
        open_ends = {place for place, end in offsets_at(consumer, places, OFFSET_END).items() if end > 0}
        assign_at(consumer, offsets_at(consumer, places, OFFSET_BEGINNING))
        while open_ends:
            for message in poll_batch(consumer, 10.0):
                if (error := message.error()) is None:
                    found.append((message, from_headers(headers_of(message))))
                else:
                    assert error.code() == KafkaError._PARTITION_EOF, error
                    open_ends.discard((message.topic() or "", message.partition() or 0))
        return found
    finally:
        consumer.close()
