"""Who a machine is: its id, what it offers, whom jobs run as."""

import os
import pwd
from pathlib import Path
from typing import Any

import pytest

from jobstream.agent.machine import job_user, open_machine, own_cpu_millis, own_memory_mib
from jobstream.runtime.config import Settings
from jobstream.runtime.errors import ConfigurationError, JobstreamError

ROOT = os.geteuid() == 0


def settings(data: Path | None, **other: Any) -> Settings:
    return Settings(data=data, **other)


def test_an_id_that_is_made_is_kept(tmp_path: Path) -> None:
    first = open_machine(settings(tmp_path / "a"))
    other = open_machine(settings(tmp_path / "b"))
    assert first.machine_id != other.machine_id
    with pytest.raises(JobstreamError, match="another agent"):  # the same id, and so the same folder
        open_machine(settings(tmp_path / "a"))
    assert (tmp_path / "a" / "agents" / "machine-id").read_text().strip() == first.machine_id


def test_machines_with_ids_of_their_own_share_a_data_folder(tmp_path: Path) -> None:
    one = open_machine(settings(tmp_path, machine_id="one"))
    two = open_machine(settings(tmp_path, machine_id="two"))
    assert one.folder != two.folder
    assert one.cgroup != two.cgroup
    assert one.session != two.session


def test_what_is_offered_is_what_is_set_or_all_there_is(tmp_path: Path) -> None:
    told = open_machine(settings(tmp_path, machine_id="a", cpu=1.5, memory_gb=0.5, labels={"zone": "b"})).registration
    assert (told.resources.cpu_millis, told.resources.memory_mib, told.labels) == (1_500, 512, {"zone": "b"})
    found = open_machine(settings(tmp_path, machine_id="b")).registration
    assert (found.resources.cpu_millis, found.resources.memory_mib) == (own_cpu_millis(), own_memory_mib())
    assert own_cpu_millis() >= 1 and own_memory_mib() >= 64


@pytest.mark.parametrize("labels", [{"a b": "c"}, {"a": ""}, {f"l{n}": "x" for n in range(33)}])
def test_labels_that_are_none_are_refused(tmp_path: Path, labels: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError, match="labels"):
        open_machine(settings(tmp_path, machine_id="a", labels=labels))


def test_a_data_folder_is_needed_and_must_be_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="JOBSTREAM_DATA"):
        open_machine(settings(None))
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match="cannot use its data folder"):
        open_machine(settings(tmp_path / "file"))


def test_a_session_after_another_knows_it_and_claims_only_what_is_proven(tmp_path: Path) -> None:
    def session(name: str) -> Any:
        machine = open_machine(settings(tmp_path, machine_id=name))
        os.close(machine.lock)
        return machine

    first = session("a")
    first.begin(guardian=2**22 - 1, contained=True, cgroups=False)
    assert first.registration.previous_session is None
    state = (first.folder / "session.json").read_text()
    (tmp_path / "agents" / "b").mkdir()
    (tmp_path / "agents" / "b" / "session.json").write_text(state)
    proven = session("b")
    proven.begin(guardian=2**22 - 1, contained=True, cgroups=False)
    assert proven.registration.previous_session == first.session
    for name, wrong in {"c": ("contained", '"contained":false'), "d": ("boot_id", '"boot_id":"x","other"')}.items():
        (tmp_path / "agents" / name).mkdir()
        old, new = wrong
        text = state.replace('"contained":true', new) if old == "contained" else state.replace('"boot_id"', new)
        (tmp_path / "agents" / name / "session.json").write_text(text)
        unproven = session(name)
        unproven.begin(guardian=2**22 - 1, contained=True, cgroups=False)
        assert unproven.registration.previous_session is None


@pytest.mark.skipif(not ROOT, reason="only root runs jobs as others")
def test_root_runs_jobs_as_somebody_else_unless_told() -> None:
    nobody = job_user(None)
    assert nobody is not None
    assert (nobody.uid, nobody.gid) == (pwd.getpwnam("nobody").pw_uid, pwd.getpwnam("nobody").pw_gid)
    assert job_user("root") is None
    with pytest.raises(ConfigurationError, match="no user 'nosuchuser'"):
        job_user("nosuchuser")


@pytest.mark.skipif(ROOT, reason="root can run jobs as others")
def test_others_run_jobs_as_themselves() -> None:
    assert job_user(None) is None
    assert job_user(pwd.getpwuid(os.geteuid()).pw_name) is None
    with pytest.raises(ConfigurationError, match="only an agent that is root"):
        job_user("root")


@pytest.mark.skipif(not ROOT, reason="only root runs jobs as others")
def test_working_directories_are_where_the_jobs_user_can_go(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    work = open_machine(settings(closed, machine_id="a")).work
    try:
        assert not work.is_relative_to(closed)
        assert all(folder.stat().st_mode & 0o001 for folder in [work, *work.parents])
        assert work.stat().st_mode & 0o022 == 0
        assert open_machine(settings(closed, machine_id="b", run_as="root")).work.is_relative_to(closed)
    finally:
        work.rmdir()


def test_working_directories_of_a_former_session_are_removed(tmp_path: Path) -> None:
    work = tmp_path / "agents" / "a" / "work"
    (work / "left" / "deep").mkdir(parents=True)
    (work / "left" / "link").symlink_to(tmp_path)
    machine = open_machine(settings(tmp_path, machine_id="a", run_as="root" if ROOT else None))
    assert machine.work == work
    assert list(work.iterdir()) == []
    assert tmp_path.exists()
