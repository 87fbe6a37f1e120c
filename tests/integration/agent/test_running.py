"""What jobs see and how they end, on a real broker with the leader played by the test."""

import os
import pwd
import signal
from pathlib import Path

import pytest
from tests.stack.isolation import Isolation
from tests.stack.waiting import eventually
from tests.support.agent_host import WITHIN_S, AgentHost, alive

from jobstream.schemas import commands as cmd
from jobstream.schemas import events as ev
from jobstream.schemas.new_ids import new_job_id
from jobstream.schemas.resources import Resources

ROOT = os.geteuid() == 0


def test_a_job_that_succeeds_is_heard_started_and_reported_with_its_output(host: AgentHost) -> None:
    host.start()
    registered = host.all(cmd.MachineRegistered)[0]
    assert registered.resources == Resources(cpu_millis=4_000, memory_mib=4_096)
    assert registered.boot_id == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assign = host.assign(["/bin/sh", "-c", "echo out; echo err >&2"])
    report = host.finished(assign.token)
    assert (report.outcome, report.exit_code, report.signal) == ("succeeded", 0, None)
    assert (report.job_id, report.session, report.machine_id) == (assign.job_id, registered.session, host.machine_id)
    assert report.started_at_ms <= report.finished_at_ms
    held = host.started(assign.token).leases[0]
    assert (held.job_id, held.started_at_ms) == (assign.job_id, report.started_at_ms)
    assert host.output(assign) == b"out\nerr\n"


@pytest.mark.parametrize(
    ("command", "exit_code", "signal_number", "said"),
    [
        ("exit 7", 7, None, b""),
        ("kill -KILL $$", None, signal.SIGKILL, b""),
        ("kill -SEGV $$", None, signal.SIGSEGV, b""),
        (["no-such-program"], 127, None, b"jobstream: cannot start: No such file or directory: no-such-program\n"),
        (["/etc/passwd"], 126, None, b"jobstream: cannot start: Permission denied: /etc/passwd\n"),
    ],
)
def test_a_job_that_fails_is_reported_with_its_end(
    host: AgentHost, command: str | list[str], exit_code: int | None, signal_number: int | None, said: bytes
) -> None:
    host.start()
    report, output = host.run(command)
    assert (report.outcome, report.exit_code, report.signal) == ("failed", exit_code, signal_number)
    assert output == said
    assert (report.detail is not None) == bool(said)


def test_the_environment_is_clean_and_says_who_the_job_is(host: AgentHost) -> None:
    host.start(SECRET="of the agent")
    assign = host.assign(
        ["/usr/bin/env"], env={"MINE": "ä\n1", "JOBSTREAM_FENCING_TOKEN": "7", "LANG": "C"}, queue="q.1"
    )
    host.finished(assign.token)
    lines = host.output(assign).decode().replace("ä\n1", "ä 1").splitlines()
    told = dict(line.split("=", 1) for line in lines)
    home = told.pop("HOME")
    assert Path(home).name == f"{assign.job_id}-1-{assign.token}"
    assert told == {
        "PATH": os.environ["PATH"],
        "LANG": "C",
        "MINE": "ä 1",
        "JOBSTREAM_JOB_ID": assign.job_id,
        "JOBSTREAM_TENANT": "acme",
        "JOBSTREAM_ATTEMPT": "1",
        "JOBSTREAM_FENCING_TOKEN": str(assign.token),
        "JOBSTREAM_MACHINE_ID": host.machine_id,
        "JOBSTREAM_QUEUE": "q.1",
        "JOBSTREAM_JOB_NAME": "test",
        "JOBSTREAM_CPU_MILLIS": "100",
        "JOBSTREAM_MEMORY_MIB": "64",
    }


def test_the_process_is_on_its_own_without_privileges_or_the_agents_files(host: AgentHost) -> None:
    host.start()
    script = (
        "import os, signal, sys\n"
        "status = dict(line.split(':\\t', 1) for line in open('/proc/self/status').read().splitlines() if ':\\t' in line)\n"
        "print(os.getuid(), os.getgid(), status['NoNewPrivs'], status['SigBlk'])\n"
        "print([int(n) for n in sorted(signal.valid_signals()) if int(status['SigIgn'], 16) >> n - 1 & 1])\n"
        "print(os.getsid(0) == os.getpid(), os.getcwd() == os.environ['HOME'], oct(os.umask(0)))\n"
        "print(sorted(int(fd) for fd in os.listdir('/proc/self/fd'))[:-1], os.readlink('/proc/self/fd/0'))\n"
        "open('mine', 'w').write('x'); print(os.getppid())\n"
    )
    report, output = host.run(["python3", "-c", script])
    nobody = pwd.getpwnam("nobody") if ROOT else pwd.getpwuid(os.geteuid())
    who, ignored, alone, files, parent = output.decode().splitlines()
    assert report.outcome == "succeeded"
    assert who == f"{nobody.pw_uid} {nobody.pw_gid} 1 {'0' * 16}"
    # Python itself ignores these. Not counted: 32 and 33, which are glibc's own; what `make` starts ignores them.
    assert ignored == str([int(signal.SIGPIPE), int(signal.SIGXFSZ)])
    assert alone == "True True 0o22"
    assert files == "[0, 1, 2] /dev/null"
    if ROOT:
        assert parent == "1"  # the guardian is the init of its namespace


@pytest.mark.skipif(not ROOT, reason="only root runs jobs as others")
def test_root_runs_jobs_as_root_only_when_told_and_still_without_new_privileges(topics: Isolation, data: Path) -> None:
    host = AgentHost(topics, data, run_as="root")
    try:
        host.start()
        assert host.run("id -u; grep NoNewPrivs /proc/self/status")[1].split() == [b"0", b"NoNewPrivs:", b"1"]
    finally:
        host.close()


@pytest.mark.skipif(not ROOT, reason="only root runs jobs as others")
def test_jobs_have_a_home_even_where_their_user_cannot_enter_the_data_folder(topics: Isolation, data: Path) -> None:
    closed = data / "closed"
    closed.mkdir(mode=0o700)
    host = AgentHost(topics, closed)
    try:
        host.start()
        report, output = host.run('echo x > "$HOME/mine" && cat "$HOME/mine"')
        assert (report.outcome, output) == ("succeeded", b"x\n")
    finally:
        host.close()


def test_the_working_directory_is_removed(host: AgentHost) -> None:
    host.start()
    report, output = host.run("mkdir -p a/b; ln -s / a/c; touch a/b/x; pwd")
    folder = Path(output.decode().strip())
    assert report.outcome == "succeeded"
    eventually(lambda: not folder.exists(), within_s=WITHIN_S, what="the folder is removed")
    assert folder.parent.exists()


# A tree that ignores SIGTERM: a child in the same session, and one that left it by forking twice.
STUBBORN = (
    "import os, signal, sys, time\n"
    "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    "os.fork()\n"
    "if os.fork() == 0:\n"
    "    os.setsid()\n"
    "    if os.fork(): os._exit(0)\n"
    "print('up', flush=True)\n"
    "time.sleep(300)\n"
)


def test_a_timeout_ends_the_whole_tree_even_where_it_ignores_sigterm(host: AgentHost) -> None:
    host.start()
    mark = f"mark-{new_job_id()}"
    assign = host.assign(["python3", "-c", STUBBORN, mark], timeout_ms=1_500)
    eventually(lambda: len(alive(mark)) >= 3, within_s=WITHIN_S, what="the tree is up")
    report = host.finished(assign.token)
    assert alive(mark) == []
    assert (report.outcome, report.exit_code, report.signal) == ("timed_out", None, signal.SIGKILL)
    assert report.finished_at_ms - report.started_at_ms >= 2_000  # 500 ms of grace


def test_a_timeout_lets_the_job_say_goodbye(host: AgentHost) -> None:
    host.start()
    script = "import signal, sys\ntry:\n signal.signal(15, lambda *a: sys.exit('bye'))\n print('hi', flush=True)\n signal.pause()"
    report, output = host.run(["python3", "-c", script + "\nfinally: pass"], timeout_ms=1_500)
    assert (report.outcome, report.exit_code) == ("timed_out", 1)
    assert output == b"hi\nbye\n"


def test_what_the_main_process_leaves_behind_ends_before_the_report(host: AgentHost) -> None:
    host.start()
    mark = f"mark-{new_job_id()}"
    assign = host.assign(
        ["/bin/sh", "-c", f"setsid env -i sleep 3600 {mark} 2>&1 & setsid python3 -c '{STUBBORN}' {mark} & sleep 0.5"]
    )
    report = host.finished(assign.token)
    assert alive(mark) == []
    assert (report.outcome, report.exit_code) == ("succeeded", 0)


def test_a_cancel_ends_the_tree_and_is_reported(host: AgentHost) -> None:
    host.start()
    mark = f"mark-{new_job_id()}"
    assign = host.assign(["python3", "-c", STUBBORN, mark])
    eventually(lambda: len(alive(mark)) >= 3, within_s=WITHIN_S, what="the tree is up")
    host.cancel(assign)
    report = host.finished(assign.token)
    assert report.outcome == "cancelled"
    assert alive(mark) == []


def test_a_cancel_before_the_assignment_is_answered_and_nothing_starts(host: AgentHost, data: Path) -> None:
    host.start()
    sign = data / "started"
    template = host.assign("true")
    host.finished(template.token)
    late = template.model_copy(
        update={"token": 999, "spec": template.spec.model_copy(update={"command": f"touch {sign}"})}
    )
    host.cancel(late)
    assert host.refused(999).code == "cancelled"
    host.dispatch(late)
    host.run("true")  # read after it
    assert not sign.exists()
    assert len([one for one in host.all(cmd.AttemptRefused) if one.token == 999]) == 1
    assert [one for one in host.all(cmd.AttemptFinished) if one.token == 999] == []


def test_a_cancel_that_comes_after_the_end_changes_nothing(host: AgentHost) -> None:
    host.start()
    assign = host.assign("true")
    host.finished(assign.token)
    host.cancel(assign)
    host.run("true")
    assert [one.outcome for one in host.all(cmd.AttemptFinished) if one.token == assign.token] == ["succeeded"]
    assert host.all(cmd.AttemptRefused) == []


def test_a_revoke_kills_at_once(host: AgentHost) -> None:
    host.start()
    mark = f"mark-{new_job_id()}"
    assign = host.assign(["python3", "-c", STUBBORN, mark])
    eventually(lambda: len(alive(mark)) >= 3, within_s=WITHIN_S, what="the tree is up")
    host.revoke(assign)
    report = host.finished(assign.token)
    assert report.outcome == "lost"
    assert alive(mark) == []


def test_a_repeated_dispatch_starts_once(host: AgentHost, data: Path) -> None:
    host.start()
    first = host.assign("echo started; sleep 0.3")
    host.dispatch(first)
    host.finished(first.token)
    host.dispatch(first)
    host.run("true")
    assert host.output(first) == b"started\n"
    assert [one.token for one in host.all(cmd.AttemptFinished)].count(first.token) == 1
    assert host.all(cmd.AttemptRefused) == []


def test_dispatches_of_other_sessions_and_machines_are_ignored(host: AgentHost) -> None:
    host.start()
    other = host.assign("true", session="another")
    foreign = other.model_copy(update={"machine_id": "m2", "session": host.session, "token": 555})
    host.dispatch(foreign)
    mine, _ = host.run("true")
    assert mine.outcome == "succeeded"
    assert {one.token for one in host.all(cmd.AttemptFinished)} == {mine.token}
    assert host.all(cmd.AttemptRefused) == []


def test_a_dispatch_of_an_unknown_or_old_presence_is_refused_as_late(host: AgentHost) -> None:
    host.start()
    assert host.refused(host.assign("true", presence=0).token).code == "late"
    assert host.refused(host.assign("true", presence=1_000).token).code == "late"
    eventually(lambda: host.presence >= 5, within_s=WITHIN_S, what="presences go on")
    assert host.refused(host.assign("true", presence=1).token).code == "late"
    assert host.run("true")[0].outcome == "succeeded"


def test_what_has_no_room_is_refused_and_room_comes_back(host: AgentHost) -> None:
    host.start()
    most = Resources(cpu_millis=3_900, memory_mib=64)
    holder = host.assign("sleep 30", resources=most)
    assert host.refused(host.assign("true", resources=Resources(cpu_millis=101, memory_mib=1)).token).code == "no_room"
    assert host.run("true", resources=Resources(cpu_millis=100, memory_mib=4_032))[0].outcome == "succeeded"
    host.cancel(holder)
    host.finished(holder.token)
    assert host.run("true", resources=Resources(cpu_millis=4_000, memory_mib=4_096))[0].outcome == "succeeded"


def test_a_record_that_cannot_be_read_is_a_dead_letter_and_the_next_one_is_handled(host: AgentHost) -> None:
    host.start()
    host.write(host.machine_id, ev.AssignAttempt.TYPE, b"{")
    host.write(host.machine_id, ev.AssignAttempt.TYPE, b'{"machine_id":"x"}')
    host.write(host.machine_id, "jobstream.dispatch.unknown.v9", b"{}")
    host.write(host.machine_id, cmd.SubmitJob.TYPE, b"{}")
    host.write("somebody-else", ev.AssignAttempt.TYPE, b"{")
    assert host.run("true")[0].outcome == "succeeded"
    eventually(lambda: len(host.all(ev.DeadLetter)) >= 4, within_s=WITHIN_S, what="dead letters")
    letters = host.all(ev.DeadLetter)
    assert [(one.topic, one.reason) for one in letters] == [
        ("dispatch", "json"),
        ("dispatch", "schema"),
        ("dispatch", "unknown_type"),
        ("dispatch", "unknown_type"),
    ]
