"""Output on its way to the log store, while attempts run, as much and as strange as it may be."""

import time
from pathlib import Path

import psutil
from tests.stack.isolation import Isolation
from tests.stack.waiting import eventually
from tests.support.agent_host import WITHIN_S, AgentHost, log_of

from jobstream.agent.output import cut_marker
from jobstream.schemas import commands as cmd


def test_output_can_be_followed_while_the_job_runs(host: AgentHost, data: Path) -> None:
    host.start()
    sign = data / "go"
    assign = host.assign(f"echo first; while [ ! -e {sign} ]; do sleep 0.05; done; echo second")
    eventually(lambda: host.output_so_far(assign) == b"first\n", within_s=WITHIN_S, what="the first line")
    assert host.store.read_end(log_of(assign)) is None
    sign.touch()
    host.finished(assign.token)
    assert host.output(assign) == b"first\nsecond\n"


def test_output_is_kept_byte_for_byte(host: AgentHost) -> None:
    host.start()
    report, output = host.run(["python3", "-c", "import os; os.write(1, bytes(range(256)) * 300)"])
    assert report.outcome == "succeeded"
    assert output == bytes(range(256)) * 300


def test_a_job_without_output_has_a_log_that_says_so(host: AgentHost) -> None:
    host.start()
    assert host.run("true")[1] == b""


def test_output_is_stored_before_the_end_is_reported(host: AgentHost) -> None:
    host.start()
    assign = host.assign("echo x")
    host.finished(assign.token)
    assert host.store.read_end(log_of(assign)) is not None


def test_output_without_end_is_cut_while_the_job_goes_on_and_memory_stays_flat(topics: Isolation, data: Path) -> None:
    limit = 3_000_000
    host = AgentHost(topics, data, log_bytes_max=limit)
    try:
        process = psutil.Process(host.start().pid)
        host.run("true")
        before = process.memory_info().rss
        # 100 MB without a newline; SIGPIPE or a full pipe would show in the exit code and in `after`.
        script = "import os\nfor _ in range(1600): os.write(1, b'x' * 65536)\nopen('after', 'w')\n"
        report, output = host.run(["python3", "-c", script])
        assert (report.outcome, report.exit_code) == ("succeeded", 0)
        assert output == b"x" * limit + cut_marker(limit)
        assert process.memory_info().rss - before < 40_000_000
    finally:
        host.close()


def test_a_flood_within_the_limit_is_whole(host: AgentHost) -> None:
    host.start()
    report, output = host.run(["python3", "-c", "for n in range(1000000): print(n)"])
    assert report.outcome == "succeeded"
    assert output == b"".join(b"%d\n" % number for number in range(1_000_000))


def test_while_the_store_is_away_jobs_and_heartbeats_go_on_and_nothing_small_is_lost(
    host: AgentHost, data: Path
) -> None:
    host.start()
    host.run("true")
    (data / "logs").rename(data / "away")
    (data / "logs").write_text("no folder")
    report_first = host.assign("echo kept; echo more")
    report = host.finished(report_first.token)
    assert report.outcome == "succeeded"
    # More than the buffer holds: the job is not held up.
    flood = host.assign(["python3", "-c", "import os\nfor _ in range(64): os.write(1, b'y' * 65536)"])
    assert host.finished(flood.token).outcome == "succeeded"
    beats = len(host.all(cmd.MachinePresent))
    eventually(lambda: len(host.all(cmd.MachinePresent)) > beats, within_s=WITHIN_S, what="presences go on")
    (data / "logs").unlink()
    (data / "away").rename(data / "logs")
    assert host.output(report_first) == b"kept\nmore\n"
    output = host.output(flood)
    assert output.startswith(b"y" * 65_536)
    end = host.store.read_end(log_of(flood))
    assert end is not None
    assert end.cut == (b"bytes of output are missing here" in output)


def test_an_idle_agent_costs_nothing(host: AgentHost) -> None:
    process = psutil.Process(host.start().pid)
    host.run("true")
    before = process.cpu_times()
    time.sleep(3)
    after = process.cpu_times()
    assert after.user + after.system - before.user - before.system < 1.0  # a loop that does not wait takes 3
