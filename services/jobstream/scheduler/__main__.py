"""Wire a scheduler process: stand by, lead when elected, begin anew after every doubt."""

import logging
import threading
from typing import Final

from jobstream.runtime.cluster import check_cluster
from jobstream.runtime.config import Settings, load_settings
from jobstream.runtime.errors import JobstreamError, LeadershipLost, LogBroken, Unavailable
from jobstream.runtime.kafka import FATAL, told
from jobstream.runtime.service import configure_logging, stop_on_signals
from jobstream.scheduler.election import Election
from jobstream.scheduler.journal import Doubtful
from jobstream.scheduler.leader import Leader, Term
from jobstream.scheduler.loading import load_state
from jobstream.scheduler.log_follower import LogFollower
from jobstream.scheduler.rounds import RoundFailed, Suspects
from jobstream.schemas.envelope import CAUSE_STATE

log = logging.getLogger("jobstream.scheduler")

LOG_BROKEN_MAX: Final = 3  # in a row: a reader that raced with a restore gets another chance, a broken log does not
WAIT_FIRST_S: Final = 0.1
WAIT_MOST_S: Final = 5.0


def run(settings: Settings, stop: threading.Event | None = None) -> None:
    """Run until `stop` is set (default: by SIGTERM or SIGINT). Raises ConfigurationError, LogBroken."""
    stop = stop_on_signals() if stop is None else stop
    check_cluster(settings, stop)
    election = Election(settings)
    try:
        _terms(settings, election, stop)
    finally:
        election.resign()


def _terms(settings: Settings, election: Election, stop: threading.Event) -> None:
    term = Term()
    wait_s, broken = WAIT_FIRST_S, 0
    while not stop.is_set():
        try:
            _term(settings, election, term, stop)
            wait_s, broken = WAIT_FIRST_S, 0
            continue
        except Doubtful as doubt:
            log.warning("begins a new epoch: %s", doubt)
            term.led_before = True
            continue
        except RoundFailed as failure:
            log.exception("throws the state away: %s", failure)
            if failure.job is not None:
                term.suspects = Suspects(term.suspects.causes, term.suspects.jobs | {failure.job})
            elif failure.cause != CAUSE_STATE:
                term.suspects = Suspects(term.suspects.causes | {failure.cause}, term.suspects.jobs)
        except LogBroken as alarm:
            log.critical("ALARM: %s", alarm)
            broken += 1
            if broken == LOG_BROKEN_MAX:
                raise
        except LeadershipLost as lost:
            log.warning("stops leading: %s", lost)
            term.led_before = False
        except Unavailable as problem:
            log.warning("begins anew: %s", problem)
        except FATAL as problem:
            log.warning("begins anew: Kafka: %s", told(problem).str())
        term.state = None
        _wait(election, stop, wait_s)
        wait_s = min(2 * wait_s, WAIT_MOST_S)


def _term(settings: Settings, election: Election, term: Term, stop: threading.Event) -> None:
    """Have a state, keep it up with the log until elected, lead."""
    if term.state is not None:
        state, known = term.state, term.known
    else:
        state, known = load_state(settings, election.poll)
    follower = LogFollower(settings, state, known)
    try:
        while not election.poll():
            if stop.is_set():
                return
            follower.poll(0.1)
        Leader(settings, election, follower, term).lead(stop)
    finally:
        follower.close()


def _wait(election: Election, stop: threading.Event, seconds: float) -> None:
    """Wait, and go on taking part in the election."""
    rest = seconds
    while rest > 0 and not stop.is_set():
        try:
            election.poll()
        except JobstreamError as problem:
            log.warning("%s", problem)
        stop.wait(min(rest, 0.5))
        rest -= 0.5


if __name__ == "__main__":
    chosen = load_settings()
    configure_logging(chosen.log_level)
    run(chosen)
