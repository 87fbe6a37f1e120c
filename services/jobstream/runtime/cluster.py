"""Refuse to start on a cluster that cannot keep our promises."""

import logging
import threading

from jobstream.runtime.config import Settings
from jobstream.runtime.errors import ConfigurationError, Unavailable
from jobstream.runtime.kafka import ask_cluster
from jobstream.runtime.service import Backoff
from jobstream.topics.provisioning import verify

log = logging.getLogger(__name__)


def check_cluster(settings: Settings, stop: threading.Event) -> None:
    """Wait for Kafka; raises ConfigurationError where topics are missing or differ from the plan.

    `unsafe_replication` allows what is less than three replicas of which two acknowledge, and topics whose
    configuration was changed by hand.
    """
    plan = settings.plan()
    if plan.replication_factor < 3 and not settings.unsafe_replication:
        raise ConfigurationError(
            f"the setting replication_factor is {plan.replication_factor}: with fewer than 3 an acknowledged record "
            "can be lost with a broker; set JOBSTREAM_UNSAFE_REPLICATION=true to run all the same"
        )
    backoff = Backoff(stop)
    while not stop.is_set():
        try:
            differences = ask_cluster(settings, lambda admin: verify(admin, plan))
        except Unavailable as error:
            log.warning("waits: %s", error)
            backoff.wait()
            continue
        if not differences:
            return
        if settings.unsafe_replication and not any(sentence.endswith("is missing") for sentence in differences):
            log.warning("runs although topics differ from the plan: %s", "; ".join(differences))
            return
        raise ConfigurationError(
            "the topics are not as they must be (`jobstream topics provision` makes and corrects them): "
            + "; ".join(differences)
        )
