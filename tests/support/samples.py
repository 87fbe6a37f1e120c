"""One sample of every message with every field set, and how samples were recorded.

`python -m tests.support.samples` records those that have no file yet in tests/golden/. A recorded file never changes.
"""

from pathlib import Path
from typing import Any

import orjson

from jobstream.schemas import commands as cmd
from jobstream.schemas import events as ev
from jobstream.schemas.base import Message
from jobstream.schemas.codec import MESSAGES, encode
from jobstream.schemas.resources import Resources

GOLDEN = Path(__file__).parents[1] / "golden"

JOB_ID = "01932e4f-7a10-7c3e-8b1f-2d5e6a9c4b70"
NAMES: dict[str, Any] = {"tenant": "acme", "job_id": JOB_ID}
LEASE: dict[str, Any] = {**NAMES, "attempt": 2, "token": 79_167_488}
ON: dict[str, Any] = {"machine_id": "host-1.example", "session": "01932e4f-0000-7000-8000-000000000001"}
SPEC = cmd.JobSpec(
    name="Größe 🚀",
    command=("/bin/sh", "-c", 'printf "%s\\n" "$1"\n', ""),
    resources=Resources(cpu_millis=1_500, memory_mib=2_048),
    priority="high",
    queue="Nightly.batch-1",
    timeout_ms=3_600_000,
    env={"PATH": "/usr/bin:/bin", "_EMPTY": ""},
    labels={"team": "data"},
    required_labels={"example.com/zone": "eu-1a", "disk": "ssd"},
)
END = ev.AttemptEnd(
    attempt=2,
    token=79_167_488,
    machine_id="host-1.example",
    outcome="failed",
    exit_code=3,
    signal=9,
    started_at_ms=1_790_000_000_123,
    finished_at_ms=1_790_000_004_567,
    detail="the process ended with 3",
)

_ALL: tuple[Message, ...] = (
    cmd.SubmitJob(**NAMES, idempotency_key="order 66/~", spec=SPEC),
    cmd.CancelJob(**NAMES, reason="no longer needed"),
    cmd.AttemptFinished(
        **LEASE,
        **ON,
        outcome="timed_out",
        exit_code=143,
        signal=15,
        started_at_ms=1_790_000_000_123,
        finished_at_ms=1_790_000_004_567,
        detail="ran longer than 4 s",
    ),
    cmd.AttemptRefused(**LEASE, **ON, code="late", detail="12 s after its presence"),
    cmd.LeaseHeartbeat(
        tenant="acme",
        **ON,
        number=41,
        leases=(cmd.HeldLease(job_id=JOB_ID, token=79_167_488, started_at_ms=1_790_000_000_123),),
    ),
    cmd.MachineRegistered(
        **ON,
        boot_id="b3c1",
        resources=Resources(cpu_millis=64_000, memory_mib=262_144),
        labels={"zone": "eu-1a"},
        previous_session="01932e4f-0000-7000-8000-000000000000",
    ),
    cmd.MachinePresent(**ON, number=7),
    cmd.MachineStopping(**ON),
    cmd.MachineGone(**ON),
    cmd.LeaderTick(epoch=3, number=99, round=1_208, elapsed_ms=1_001),
    ev.JobAccepted(
        **NAMES, command_id="01932e4f-7a11-7000-8000-00000000000a", digest="0f" * 16, idempotency_key="k", spec=SPEC
    ),
    ev.JobRefused(**NAMES, command_id="c:1", code="id_too_old", detail="older than 48 h"),
    ev.SubmissionRepeated(**NAMES, command_id="c:2"),
    ev.CancelRequested(**NAMES, command_id="c:3", reason="no longer needed"),
    ev.CancelIgnored(**NAMES, command_id="c:4", code="ended", detail="it has ended"),
    ev.JobAssigned(**LEASE, **ON, presence=7),
    ev.JobStarted(**LEASE, started_at_ms=1_790_000_000_123, seen_at_ms=1_790_000_000_140),
    ev.AssignmentRefused(**LEASE, machine_id="host-1.example", code="no_room", detail="full"),
    ev.AttemptLost(**LEASE, machine_id="host-1.example", started=True, detail="its lease expired"),
    ev.ReportIgnored(**LEASE, **ON, reported="attempt.finished succeeded", code="stale_token"),
    ev.JobCompleted(**NAMES, end=END.model_copy(update={"outcome": "succeeded", "exit_code": 0, "signal": None})),
    ev.JobFailed(**NAMES, end=END, reason="exit", detail="the process ended with 3"),
    ev.JobCancelled(**NAMES, end=END, command_id="c:5", reason="no longer needed"),
    ev.MachineAdmitted(
        **ON,
        boot_id="b3c1",
        resources=Resources(cpu_millis=64_000, memory_mib=262_144),
        labels={"zone": "eu-1a"},
        previous_session_gone=True,
    ),
    ev.MachineDraining(**ON),
    ev.MachineLeft(**ON),
    ev.MachineLost(**ON),
    ev.MachineReportIgnored(**ON, reported="machine.present", code="other_session"),
    ev.RoundCommitted(
        cell="cell-0",
        round=1_208,
        epoch=3,
        now_ms=1_790_000_000_140,
        inputs={"submissions": {0: (17, 20), 31: (0, 1)}},
        written={"lifecycle": {0: (40, 43)}},
        core_version="1",
        digest=2**61 - 2,
        forget_before_ms=1_789_820_000_140,
        positions={"submissions": {0: 20, 31: 1}},
        answered={"completions": {2: (7, 9)}},
        epoch_start=ev.EpochStart(
            configuration={"ttl_ms": 90_000, "cell": "cell-0"},
            failover=True,
            log_sequences={"lifecycle": {0: 40}},
            gaps={"heartbeats": {3: (5, 9)}},
        ),
    ),
    ev.AssignAttempt(**LEASE, **ON, presence=7, spec=SPEC),
    ev.CancelAttempt(**LEASE, **ON),
    ev.RevokeAttempt(**LEASE, **ON),
    ev.DeadLetter(
        topic="submissions",
        partition=31,
        offset=17,
        reason="json",
        detail="unexpected end of data",
        type="jobstream.job.submit.v1",
        value_size=1,
        key_base64="YWNtZQ==",
        value_base64="ew==",
    ),
)
SAMPLES: dict[str, Message] = {message.TYPE: message for message in _ALL}


def golden_files() -> list[Path]:
    return sorted(GOLDEN.glob("v*/*.json"))


def main() -> None:
    for name in MESSAGES:
        path = GOLDEN / f"v{name.rpartition('.v')[2]}" / f"{name}.json"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            value = orjson.loads(encode(SAMPLES[name]))
            path.write_bytes(orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
            print(path)


if __name__ == "__main__":
    main()
