"""From start to end of a stack, whichever way it ends."""

import os
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from tests.integration.local.conftest import OwnStack
from tests.integration.local.test_servers import make_topic, query, read, write
from tests.stack.waiting import eventually

from jobstream.local import java, paths, run, state
from jobstream.local.errors import LocalStackError
from jobstream.local.process import ProcessId

GONE_WITHIN_S = 30.0  # after a SIGKILL: at once; after a SIGTERM: 2 s
RUN_WITHIN_S = 120.0


def gone(processes: list[ProcessId]) -> bool:
    """Whether all end in time."""
    for process in processes:
        fd = process.open()
        if fd is not None:
            ended = select.select([fd], [], [], GONE_WITHIN_S)[0]
            os.close(fd)
            if not ended:
                return False
    return True


def test_killed_supervisor_leaves_nothing_behind_and_the_next_one_finds_the_data(own_data: OwnStack) -> None:
    before = own_data.up()
    make_topic(before, "kept")
    write(before, "kept", "a record")
    query(before, "CREATE TABLE kept AS SELECT 'a row' AS value")
    family = own_data.processes()
    assert len(family) > 6  # PostgreSQL's own workers are among them
    os.kill(before["supervisor"]["pid"], signal.SIGKILL)
    assert gone(family)
    assert run.status(own_data.data) is None
    assert run.down(own_data.data) is False

    after = own_data.up()
    assert {name: after[name] for name in ("kafka", "postgres")} == {
        name: before[name] for name in ("kafka", "postgres")
    }
    assert read(after, "kept", 1) == ["a record"]
    assert query(after, "SELECT value FROM kept") == [("a row",)]

    family = own_data.processes()
    assert run.down(own_data.data) is True
    assert not [process for process in family if process.alive()]
    assert not own_data.layout.state.exists()
    assert not own_data.layout.socket.exists()


def test_foreground_run_with_an_empty_home_ends_on_interrupt(tmp_path: Path) -> None:
    """As a user starts it: no data folder named, a home with nothing in it, Ctrl-C at the end."""
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("JOBSTREAM_", "XDG_"))}
    env = kept | {
        "HOME": str(home),
        "XDG_CACHE_HOME": str(paths.cache().parent),
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    java.resolve()  # the jars are in the cache already, wherever that is
    argv = [sys.executable, "-m", "jobstream.local", "run", "--json"]
    data = home / ".local" / "share" / "jobstream"
    with subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert select.select([process.stdout], [], [], RUN_WITHIN_S)[0]
            assert f'"data": "{data}"' in process.stdout.readline()
            family = OwnStack(data).processes()
            process.send_signal(signal.SIGINT)
            assert process.wait(RUN_WITHIN_S) == 0
        finally:
            process.kill()  # and its children with it
    assert not [member for member in family if member.alive()]


def test_stack_ends_with_the_process_that_it_was_made_for(own_data: OwnStack) -> None:
    with subprocess.Popen(["sleep", "600"]) as owner:
        run.up(agents=None, data=own_data.data, detach=True, ready=lambda _: None, until=owner.pid)
        family = own_data.processes()
        owner.kill()
    assert gone(family)


def test_down_does_not_touch_a_process_that_took_over_the_id(own_data: OwnStack) -> None:
    own_data.layout.make()
    with subprocess.Popen(["sleep", "600"]) as stranger:
        actual = ProcessId.of(stranger.pid)
        assert actual is not None
        described = {"supervisor": {"pid": actual.pid, "started": actual.started - 1}, "children": []}
        state.write_private(own_data.layout.state, described)
        assert run.down(own_data.data) is False
        assert run.status(own_data.data) is None
        assert stranger.poll() is None
        stranger.kill()


def test_interrupted_start_leaves_nothing(own_data: OwnStack) -> None:
    """Ctrl-C while `run --detach` waits: the supervisor, in a session of its own, would go on."""
    argv = [sys.executable, "-m", "jobstream.local", "run", "--detach", "--data", str(own_data.data)]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(argv, env=env, stderr=subprocess.DEVNULL) as process:
        eventually(lambda: run.status(own_data.data), within_s=RUN_WITHIN_S, what="a supervisor")
        family = own_data.processes()
        process.send_signal(signal.SIGINT)
        assert process.wait(RUN_WITHIN_S) != 0
    assert not [member for member in family if member.alive()]


def test_ports_are_kept_unless_they_were_taken_meanwhile(own_data: OwnStack) -> None:
    own_data.layout.make()
    first = state.ports(own_data.layout, ("kafka", "controller"))
    assert first["kafka"] != first["controller"]
    assert set(first.values()) < set(state.PORTS)
    assert state.ports(own_data.layout, ("kafka", "controller")) == first
    with socket.create_server(("127.0.0.1", first["kafka"])):
        second = state.ports(own_data.layout, ("kafka", "controller"))
    assert second["kafka"] != first["kafka"]
    assert second["controller"] == first["controller"]


def test_no_free_port_is_said(own_data: OwnStack, monkeypatch: pytest.MonkeyPatch) -> None:
    own_data.layout.make()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setattr(state, "PORTS", [port])
        monkeypatch.setattr(state, "PORT_TRIES", 1)
        with pytest.raises(LocalStackError, match=f"no free port for kafka on 127.0.0.1 between {port} and {port}"):
            state.ports(own_data.layout, ("kafka",))


def test_start_that_fails_says_why_and_leaves_nothing(own_data: OwnStack) -> None:
    own_data.layout.make()
    (own_data.layout.kafka).write_text("in the way")
    with pytest.raises(LocalStackError, match=r"kafka"):
        own_data.up()
    assert run.status(own_data.data) is None
