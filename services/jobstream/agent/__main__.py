"""Run this machine's agent until it is told to stop."""

import logging
import selectors
import sys
from dataclasses import asdict

from confluent_kafka import Message as Record

from jobstream.agent.agent import Agent
from jobstream.agent.captures import Captures
from jobstream.agent.machine import Machine, open_machine
from jobstream.agent.mailbox import Mailbox
from jobstream.agent.outbox import Outbox
from jobstream.agent.wakeup import StopSignals, Wakeup
from jobstream.agent.ward import Ward, start_guardian
from jobstream.agent.workdirs import Workdirs
from jobstream.runtime.config import Settings, load_settings
from jobstream.runtime.errors import JobstreamError, Unavailable
from jobstream.runtime.kafka import make_producer
from jobstream.runtime.log_store import LogStore
from jobstream.runtime.service import configure_logging
from jobstream.schemas.errors import Unreadable
from jobstream.schemas.events import AssignAttempt, CancelAttempt, RevokeAttempt
from jobstream.topics.catalogue import DISPATCH

log = logging.getLogger(__name__)

CONNECT_RETRY_S = 2.0  # between tries to reach Kafka at the start


def run(settings: Settings) -> None:
    """Blocks until SIGTERM or SIGINT have drained the machine. Raises JobstreamError where it cannot go on."""
    configure_logging(settings.log_level)
    stops = StopSignals()
    wakeup = Wakeup()
    wakeup.signals_wake()
    selector = selectors.DefaultSelector()
    store = LogStore(settings.log_store_url)
    machine = open_machine(settings)
    ward = start_guardian(guardian_config(settings, machine), lock=machine.lock)
    machine.begin(guardian=ward.pid, contained=ward.contained, cgroups=ward.cgroups)
    say_how(machine, ward)
    outbox = Outbox(
        make_producer(settings),
        prefix=settings.topic_prefix,
        source=f"/jobstream/agent/{machine.machine_id}",
        wakeup=wakeup,
    )
    captures = Captures(store, bytes_max=settings.log_bytes_max, selector=selector, wakeup=wakeup)
    workdirs = Workdirs()
    agent = Agent(
        settings,
        machine,
        ward,
        outbox=outbox,
        captures=captures,
        workdirs=workdirs,
        selector=selector,
        wakeup=wakeup,
        stops=stops,
    )

    def received(dispatch: AssignAttempt | CancelAttempt | RevokeAttempt) -> None:
        wakeup.post(lambda: agent.on_dispatch(dispatch))

    def unread(record: Record, error: Unreadable, type_name: str | None) -> None:
        wakeup.post(lambda: outbox.send_dead_letter(DISPATCH, record, error.reason, error.detail, type_name))

    mailbox = Mailbox(settings, machine.machine_id, received, unread)
    try:
        if open_mailbox(mailbox, wakeup, stops):
            agent.run()
    finally:
        mailbox.close()
        outbox.close(0)
        captures.close()
        workdirs.close()
        machine.leave()


def guardian_config(settings: Settings, machine: Machine) -> dict[str, object]:
    """What the guardian must know: the times of leases, what there is room for, whom jobs run as."""
    return {
        "ttl_ms": settings.lease.ttl_ms,
        "margin_ms": settings.lease.margin_ms,
        "grace_ms": settings.kill_grace_ms,
        "cpu_millis": machine.registration.resources.cpu_millis,
        "memory_mib": machine.registration.resources.memory_mib,
        "user": asdict(machine.user) if machine.user is not None else None,
        "cgroup": machine.cgroup,
    }


def say_how(machine: Machine, ward: Ward) -> None:
    log.info(
        "machine %s, session %s: attempts are held by %s, %s",
        machine.machine_id,
        machine.session,
        "a PID namespace" if ward.contained else "a subreaper",
        "a cgroup for each" if ward.cgroups else "without cgroups",
    )


def open_mailbox(mailbox: Mailbox, wakeup: Wakeup, stops: StopSignals) -> bool:
    """Begin to read dispatches, however long Kafka is away; False where told to stop meanwhile."""
    with selectors.DefaultSelector() as waiting:
        waiting.register(wakeup.socket, selectors.EVENT_READ)
        while not stops.count:
            try:
                mailbox.open()
            except Unavailable as error:
                log.warning("%s; trying again every %.0f s", error, CONNECT_RETRY_S)
                waiting.select(CONNECT_RETRY_S)
            else:
                return True
    return False


if __name__ == "__main__":
    try:
        run(load_settings())
    except JobstreamError as error:
        sys.exit(f"jobstream agent: {error}")
