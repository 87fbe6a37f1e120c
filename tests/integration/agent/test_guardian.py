"""The guardian alone, in each way in which it can hold processes; the test is its agent."""

import os
import select
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.stack.waiting import eventually
from tests.support.agent_host import WITHIN_S, alive

from jobstream.agent.channel import ChannelClosed
from jobstream.agent.tree import cgroup_home
from jobstream.agent.ward import Ward, start_guardian
from jobstream.runtime.clock import boottime_ms
from jobstream.schemas.new_ids import new_job_id

TTL_MS, MARGIN_MS = 2_500, 500
ROOT = os.geteuid() == 0
HOLDS = {
    "namespace and cgroups": (True, True),
    "namespace": (True, False),
    "cgroups": (False, True),
    "subreaper": (False, False),
}
FLEES = (  # a process that leaves session, parents and environment, ignores SIGTERM and says when it is there
    "import os, signal, sys, time\n"
    "if len(sys.argv) == 2:\n"
    "    if os.fork() == 0:\n"
    "        os.setsid()\n"
    "        if os.fork() == 0: os.execve(sys.executable, [sys.executable, '-c', open(0).read(), sys.argv[1], 'x'], {})\n"
    "        os._exit(0)\n"
)


class Played:
    """The agent's side of a guardian, played by the test."""

    def __init__(self, ward: Ward, folder: Path) -> None:
        self.ward = ward
        self.folder = folder
        self.said: list[dict[str, Any]] = []
        self.outputs: dict[int, int] = {}

    def start(self, token: int, argv: list[str], *, begun: int | None = None, **more: Any) -> None:
        order = {
            "do": "start",
            "token": token,
            "begun": boottime_ms() if begun is None else begun,
            "cpu_millis": 1,
            "memory_mib": 1,
            "argv": argv,
            "env": {"PATH": os.defpath, "JOBSTREAM_FENCING_TOKEN": str(token)},
            "folder": str(self.folder / str(token)),
            "timeout_ms": None,
        }
        self.ward.channel.send({**order, **more})

    def hear(self, did: str, token: int, within_s: float = WITHIN_S) -> dict[str, Any]:
        def heard() -> dict[str, Any] | None:
            if select.select([self.ward.channel.socket], [], [], 0)[0]:
                for message, descriptor in self.ward.channel.receive():
                    self.said.append(message)
                    if descriptor is not None:
                        self.outputs[message["token"]] = descriptor
            return next((one for one in self.said if one.get("did") == did and one.get("token") == token), None)

        return eventually(heard, within_s=within_s, what=f"{did} {token}")


@pytest.fixture(params=HOLDS, ids=lambda name: name.replace(" ", "-"))
def played(request: pytest.FixtureRequest, data: Path) -> Iterator[Played]:
    namespace, cgroups = HOLDS[request.param]
    ward = start_guardian(
        {
            "ttl_ms": TTL_MS,
            "margin_ms": MARGIN_MS,
            "grace_ms": 300,
            "cpu_millis": 100,
            "memory_mib": 100,
            "user": {"uid": 65_534, "gid": 65_534, "groups": [65_534]} if ROOT else None,
            "cgroup": f"jobstream-test-{os.getpid()}" if cgroups else None,
        },
        namespace=namespace,
    )
    try:
        if (ward.contained, ward.cgroups) != (namespace, cgroups):
            pytest.skip(f"{request.param} cannot be had here")
        yield Played(ward, data)
    finally:
        ward.channel.socket.close()
        gone = ward.wait_gone()
        os.close(ward.pidfd)
        if cgroups and (left := cgroup_home(f"jobstream-test-{os.getpid()}")) is not None:  # where it was killed
            left.rmdir()
        assert gone, "the guardian did not end with its last attempt"


def test_it_says_started_then_ended_and_hands_over_the_output(played: Played) -> None:
    played.start(1, ["/bin/sh", "-c", "echo hi; exit 3"])
    ended = played.hear("ended", 1)
    assert [one["did"] for one in played.said] == ["started", "ended"]
    assert (ended["exit_code"], ended["signal"], ended["reason"]) == (3, None, None)
    assert os.read(played.outputs[1], 100) == b"hi\n"
    assert os.read(played.outputs[1], 100) == b""


def test_nothing_outlives_the_main_process_not_even_what_hides(played: Played) -> None:
    mark = f"mark-{new_job_id()}"
    script = FLEES.replace(
        "open(0).read()", repr("import signal,time; signal.signal(15, signal.SIG_IGN); time.sleep(300)")
    )
    played.start(1, ["python3", "-c", script + "time.sleep(1)", mark])
    eventually(lambda: len(alive(mark)) >= 2, within_s=WITHIN_S, what="the process has fled")
    assert played.hear("ended", 1)["exit_code"] == 0
    assert alive(mark) == []


def test_trust_that_ends_kills_at_once_and_other_attempts_go_on(played: Played) -> None:
    begun = boottime_ms()
    played.start(1, ["sleep", "300"], begun=begun - 1_000)
    played.start(2, ["sleep", "300"], begun=begun)
    played.hear("started", 2)
    played.ward.channel.send({"do": "acknowledged", "begun": boottime_ms(), "tokens": [2]})
    ended = played.hear("ended", 1)
    after = boottime_ms() - begun
    assert (ended["reason"], ended["signal"]) == ("untrusted", signal.SIGKILL)
    assert after >= TTL_MS - MARGIN_MS - 1_000
    assert not any(one.get("token") == 2 and one["did"] == "ended" for one in played.said)
    assert played.hear("ended", 2)["reason"] == "untrusted"
    assert boottime_ms() - begun > TTL_MS - MARGIN_MS


def test_a_dead_agent_takes_its_attempts_along(played: Played) -> None:
    mark = f"mark-{new_job_id()}"
    played.start(1, ["python3", "-c", "import time; time.sleep(300)", mark])
    played.hear("started", 1)
    os.close(played.outputs[1])
    played.ward.channel.socket.close()
    assert played.ward.wait_gone()
    assert alive(mark) == []


def test_a_late_start_is_refused_and_nothing_runs(played: Played) -> None:
    sign = played.folder / "sign"
    played.start(1, ["touch", str(sign)], begun=boottime_ms() - (TTL_MS - MARGIN_MS))
    assert played.hear("refused", 1)["code"] == "late"
    assert not sign.exists()


def test_a_process_that_runs_away_by_forking_ends_with_its_attempt(played: Played) -> None:
    mark = f"mark-{new_job_id()}"
    runner = (  # one process at a time, each with an id and a session of its own, for 20 s at most
        "import os, time\n"
        "end = time.monotonic() + 20\n"
        "if os.fork(): time.sleep(20)\n"
        "while time.monotonic() < end:\n"
        "    if os.fork(): os._exit(0)\n"
        "    os.setsid()\n"
        "    time.sleep(0.002)\n"
    )
    played.start(1, ["python3", "-c", runner, mark], timeout_ms=700)
    assert played.hear("ended", 1)["reason"] == "timed_out"
    assert alive(mark) == []


def test_many_starts_at_once_all_run(played: Played) -> None:
    for token in range(30):
        played.start(token, ["/bin/sh", "-c", f"echo {token}"])
    for token in range(30):
        assert played.hear("ended", token)["exit_code"] == 0
        assert os.read(played.outputs[token], 100) == b"%d\n" % token
        os.close(played.outputs[token])


def test_its_own_death_takes_main_processes_along_and_in_a_namespace_everything(played: Played) -> None:
    mark = f"mark-{new_job_id()}"
    script = (
        f"setsid python3 -c 'import time; time.sleep(20)' {mark} & exec python3 -c 'import time; time.sleep(20)' {mark}"
    )
    played.start(1, ["/bin/sh", "-c", script])
    eventually(lambda: len(alive(mark)) == 2, within_s=WITHIN_S, what="both run")
    os.kill(played.ward.pid, signal.SIGKILL)
    assert played.ward.wait_gone()
    left = eventually(lambda: 2 - len(alive(mark)), within_s=WITHIN_S, what="the main process has ended")
    assert left == 2 if played.ward.contained else left >= 1
    with pytest.raises(ChannelClosed):
        while True:
            played.ward.channel.receive()
    for pid in alive(mark):
        os.kill(pid, signal.SIGKILL)
