"""Leaders that crash and agents that lie, freeze and come back, over the pure core: seeded, in steps of simulated time.

True time is the agents' CLOCK_BOOTTIME; the broker's clock is the same but for jumps. Nothing here is threads or sockets.
"""

import random
from dataclasses import dataclass, field
from typing import Any, Final

from tests.support.scheduler_inboxes import Inboxes
from tests.support.scheduler_world import Leader, Log

from jobstream.scheduler.leases import LeaseTimes
from jobstream.scheduler.rounds import DispatchRecord, LogRecord, Round, Rules
from jobstream.schemas import commands as cmd
from jobstream.schemas import events as ev
from jobstream.schemas.base import Message
from jobstream.schemas.codec import decode
from jobstream.schemas.ids import derive_job_id
from jobstream.schemas.states import PRIORITIES, AttemptOutcome
from jobstream.topics.catalogue import COMPLETIONS, HEARTBEATS

STEP_MS: Final = 250
HEARTBEAT_MS: Final = 4_000
TIMES: Final = LeaseTimes(ttl_ms=12_000, margin_ms=3_000, grace_ms=2_500)
RULES: Final = Rules(cell="cell-0", lease=TIMES)
TRUST_MS: Final = TIMES.ttl_ms - TIMES.margin_ms
TENANTS: Final = ("acme", "globex", "initech")

JobKey = tuple[str, str]


@dataclass(slots=True)
class Held:
    """What an agent runs: one attempt."""

    assignment: ev.AssignAttempt
    trusted_until: int
    started_ms: int
    ends_at: int
    heard: bool = False  # its first heartbeat was sent
    ending: AttemptOutcome = "succeeded"


@dataclass(slots=True)
class Agent:
    """One machine. `reachable` says whether the broker is there for it; what it reports is kept until it is."""

    machine_id: str
    sessions: int = 0
    number: int = 0  # of presences
    begun: dict[int, int] = field(default_factory=dict)
    held: dict[int, Held] = field(default_factory=dict)
    seen: set[int] = field(default_factory=set)  # only looked up
    reports: list[Message] = field(default_factory=list)
    next_heartbeat: int = 0
    unreachable_until: int = 0
    down_until: int = 0

    @property
    def session(self) -> str:
        return f"{self.machine_id}-s{self.sessions}"


@dataclass(slots=True)
class Simulation:
    """One run. `chaos` is how likely each misfortune is; at 0 everything goes well, which is how a run is ended."""

    seed: int
    machines: int = 3
    chaos: float = 1.0
    mortal: bool = True  # leaders die, and doubt
    leading: bool = True  # else inputs pile up
    now: int = 0
    inboxes: Inboxes = field(default_factory=Inboxes)
    log: Log = field(default_factory=Log)
    leader: Leader | None = None
    agents: list[Agent] = field(default_factory=list)
    submitted: list[JobKey] = field(default_factory=list)
    mail: list[tuple[int, DispatchRecord]] = field(default_factory=list)  # due at
    elected_at: int = 0
    next_tick: int = 0
    jumped_at: int = -(10**9)
    first_round: int = 0  # of the epoch
    torn: int = 0
    twice: list[str] = field(default_factory=list)
    dice: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.dice = random.Random(self.seed)
        self.agents = [Agent(f"m{number}") for number in range(self.machines)]
        for agent in self.agents:
            self._register(agent, proven=False)

    def happens(self, probability: float) -> bool:
        return self.dice.random() < probability * self.chaos

    def run(self, ms: int) -> None:
        for _ in range(ms // STEP_MS):
            self.step()

    def step(self) -> None:
        self.now += STEP_MS
        self.inboxes.now_ms += STEP_MS
        if self.now - self.jumped_at > 2 * TIMES.expires_after_ms and self.happens(0.005):
            self.jumped_at = self.now  # one jump, in either direction, within a lease's life
            self.inboxes.now_ms += self.dice.choice([-3_000, -700, 5_000, 60_000])
        self._users()
        self._mail()
        for agent in self.agents:
            self._agent(agent)
        self._check_alone()
        if self.leading:
            self._lead()

    # ---- users

    def _users(self) -> None:
        if self.chaos and self.dice.random() < 0.15:
            self.submit()
        if self.submitted and self.happens(0.02):
            tenant, id = self.dice.choice(self.submitted)
            self.inboxes.cancel(tenant, id)
        if self.submitted and self.happens(0.02):  # a client tries again
            number = self.dice.randrange(len(self.submitted))
            self._submit(self.submitted[number][0], f"k{number}")

    def submit(self) -> None:
        """A new job."""
        tenant = self.dice.choice(TENANTS)
        key = f"k{len(self.submitted)}"
        self.submitted.append((tenant, derive_job_id(tenant, key)))
        self._submit(tenant, key)

    def _submit(self, tenant: str, key: str) -> None:
        number = int(key[1:])
        self.inboxes.submit(
            tenant,
            derive_job_id(tenant, key),
            idempotency_key=key,
            priority=PRIORITIES[number % 4],
            queue=f"q{number % 2}",
            cpu=100 + number % 5 * 100,
        )

    # ---- agents

    def _register(self, agent: Agent, *, proven: bool) -> None:
        """A new session. Unproven, what the old one ran may live on: here it does not, but nobody knows."""
        previous = agent.session if proven else None
        agent.sessions += 1
        agent.number, agent.begun, agent.held, agent.reports = 0, {}, {}, []
        self.inboxes.register(agent.machine_id, agent.session, previous=previous)
        agent.next_heartbeat = self.now

    def _reachable(self, agent: Agent) -> bool:
        return self.now >= agent.unreachable_until

    def _agent(self, agent: Agent) -> None:
        if self.now < agent.down_until:
            return
        if agent.down_until:
            agent.down_until = 0
            self._register(agent, proven=self.dice.random() < 0.5)
        if self.happens(0.001):
            agent.held, agent.reports = {}, []  # everything on it dies
            agent.down_until = self.now + self.dice.randrange(1_000, 30_000)
            return
        if self._reachable(agent) and self.happens(0.003):
            agent.unreachable_until = self.now + self.dice.randrange(1_000, 25_000)
        for token, held in list(agent.held.items()):
            if self.now >= held.trusted_until:
                self._end(agent, token, "lost")
            elif self.now >= held.ends_at:
                self._end(agent, token, held.ending)
        if self.now >= agent.next_heartbeat:
            agent.next_heartbeat = self.now + HEARTBEAT_MS
            agent.number += 1
            agent.begun[agent.number] = self.now
            if self._reachable(agent) and not self.happens(0.05):
                self.inboxes.present(agent.machine_id, agent.session, agent.number)
            self._heartbeat(agent, list(agent.held))
        if self._reachable(agent):
            for report in agent.reports:
                self.inboxes.put(COMPLETIONS.name, report)
                if self.happens(0.1):
                    self.inboxes.put(COMPLETIONS.name, report)
            agent.reports = []

    def _heartbeat(self, agent: Agent, tokens: list[int]) -> None:
        """Sent and acknowledged in one step, or sent and not acknowledged, or neither."""
        if not self._reachable(agent) or self.happens(0.1):
            return
        for tenant in TENANTS:
            held = [agent.held[token] for token in tokens if agent.held[token].assignment.tenant == tenant]
            if not held:
                continue
            leases = tuple(
                cmd.HeldLease(job_id=h.assignment.job_id, token=h.assignment.token, started_at_ms=h.started_ms)
                for h in held
            )
            self.inboxes.put(
                HEARTBEATS.name,
                cmd.LeaseHeartbeat(
                    tenant=tenant,
                    machine_id=agent.machine_id,
                    session=agent.session,
                    number=agent.number,
                    leases=leases,
                ),
            )
            for one in held:
                one.heard = True
                if not self.happens(0.1) and self.now < one.trusted_until:
                    one.trusted_until = self.now + TRUST_MS

    def _end(self, agent: Agent, token: int, outcome: AttemptOutcome) -> None:
        held = agent.held.pop(token)
        agent.reports.append(
            cmd.AttemptFinished(**self._names(held.assignment), outcome=outcome, started_at_ms=1, finished_at_ms=2)
        )

    @staticmethod
    def _names(order: ev.Dispatch) -> dict[str, Any]:
        return {
            name: getattr(order, name) for name in ("tenant", "job_id", "attempt", "token", "machine_id", "session")
        }

    # ---- dispatches

    def _mail(self) -> None:
        due = [dispatch for at, dispatch in self.mail if at <= self.now]
        self.mail = [(at, dispatch) for at, dispatch in self.mail if at > self.now]
        self.dice.shuffle(due)
        for dispatch in due:
            order = decode(dispatch.type_name, dispatch.value)
            assert isinstance(order, ev.Dispatch)
            agent = next(agent for agent in self.agents if agent.machine_id == order.machine_id)
            if self._reachable(agent) and not agent.down_until and order.session == agent.session:
                self._obey(agent, order)

    def _send(self, dispatches: list[DispatchRecord]) -> None:
        for dispatch in dispatches:
            if self.happens(0.05):
                continue
            for _ in range(2 if self.happens(0.05) else 1):
                late = self.dice.randrange(0, 15_000) if self.happens(0.05) else 0
                self.mail.append((self.now + late, dispatch))

    def _obey(self, agent: Agent, order: ev.Dispatch) -> None:
        if not isinstance(order, ev.AssignAttempt):
            if order.token in agent.held:
                self._end(agent, order.token, "cancelled")
            elif order.token not in agent.seen:
                agent.reports.append(cmd.AttemptRefused(**self._names(order), code="cancelled"))
            agent.seen.add(order.token)
            return
        if order.token in agent.seen:
            return
        agent.seen.add(order.token)
        begun = agent.begun.get(order.presence)
        if begun is None or self.now >= begun + TRUST_MS:
            agent.reports.append(cmd.AttemptRefused(**self._names(order), code="late"))
            return
        agent.held[order.token] = Held(
            assignment=order,
            trusted_until=begun + TRUST_MS,
            started_ms=self.now,
            ends_at=self.now + self.dice.randrange(0, 30_000),
            ending=self.dice.choice(["succeeded", "succeeded", "failed", "timed_out", "lost"]),
        )
        self._heartbeat(agent, [order.token])

    def _check_alone(self) -> None:
        """No job has two attempts that live: the promise of leases."""
        alive: dict[JobKey, str] = {}
        for agent in self.agents:
            for token, held in agent.held.items():
                if self.now >= held.trusted_until:
                    continue  # it is stopped in the next step: what `stop_ms` allows for
                key = (held.assignment.tenant, held.assignment.job_id)
                if key in alive:
                    self.twice.append(f"{key} on {alive[key]} and {agent.machine_id} ({token}) at {self.now}")
                alive[key] = agent.machine_id

    # ---- leaders

    def _lead(self) -> None:
        leader = self.leader
        if leader is None:
            if self.now < self.elected_at:
                return
            leader = self.leader = Leader(self.inboxes, self.log, rules=RULES)
            if self.dice.random() < 0.7:
                self.log.follow(leader.state, leader.tail, self.dice)
            else:
                self.log.load(leader.state, leader.tail)
            if not self._begin(leader):
                return
        if self.now >= self.next_tick:
            self.next_tick = self.now + 1_000
            self._tick(leader)
        if self.mortal and self.happens(0.003):
            leader.tail = type(leader.tail)()  # a doubtful commit: the state is kept for a new epoch
            if not self._begin(leader):
                return
        made = leader.decide(leader.take(self.dice.choice([None, 1, 2])))
        if self._commits(made):
            self._send(made.dispatches)

    def _begin(self, leader: Leader) -> bool:
        leader.take_over()
        leader.ticks, leader.ticked_ms = 0, self.now
        made = leader.first_round()
        self.first_round = made.number
        if not self._commits(made):
            return False
        self._send([DispatchRecord(*dispatch) for dispatch in leader.unheard()])
        return True

    def _tick(self, leader: Leader) -> None:
        leader.ticks += 1
        elapsed = self.now - leader.ticked_ms if leader.ticks > 1 else 0
        leader.ticked_ms = self.now
        self.inboxes.tick(leader.state.epoch, leader.ticks, leader.state.round, elapsed)

    def _commits(self, made: Round) -> bool:
        """Whether the leader lives on; else what is visible of its round is up to chance."""
        # Most often soon after a takeover, while what a torn round has read is not read again yet.
        if not self.mortal or not self.happens(0.01 if made.number > self.first_round + 4 else 0.1):
            self.log.commit(made)
            return True
        self.leader, self.elected_at = None, self.now + self.dice.randrange(0, 8_000)
        how = self.dice.random()
        if how < 0.3:
            return False  # aborted: nothing is visible
        if how < 0.5:
            self.log.commit(made)  # committed, and died before it told anybody
            return False
        self.torn += 1
        shown: dict[tuple[str, int], int] = {}
        for place, (first, after) in made.written.items():
            shown[place] = self.dice.choice([first, after, self.dice.randint(first, after)])

        def show(record: LogRecord) -> bool:
            return record.stamp.sequence < shown[record.topic, record.partition]

        self.log.commit(made, show=show, whole=self.dice.random() < 0.5)
        return False
