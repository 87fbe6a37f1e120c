"""Who this machine is and what it offers: its id, session, folder, locks, capacity, and the user whom jobs run as."""

import contextlib
import fcntl
import hashlib
import os
import pwd
import re
import secrets
import shutil
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import orjson
from pydantic import ValidationError

from jobstream.agent.launcher import User
from jobstream.runtime.config import Settings
from jobstream.runtime.errors import ConfigurationError, JobstreamError
from jobstream.schemas.codec import describe
from jobstream.schemas.commands import MachineRegistered
from jobstream.schemas.ids import MACHINE_ID_PATTERN
from jobstream.schemas.new_ids import new_event_id
from jobstream.schemas.resources import CPU_MILLIS_MAX, MEMORY_MIB_MAX, Resources

DEFAULT_USER: Final = "nobody"
OLD_GUARDIAN_WAIT_S: Final = 20.0  # it kills what it holds at once; the kernel takes ms, a stuck disk seconds
OLD_GUARDIAN_ASK_S: Final = 0.2
WORK_FOLDER_FALLBACK: Final = Path("/var/tmp")  # noqa: S108 (the folder below it is checked to be our own)


@dataclass(frozen=True, slots=True, kw_only=True)
class Former:
    """The session before, in this boot; its guardian has ended. How it held its attempts: see `containment`."""

    session: str
    contained: bool
    cgroups: bool


@dataclass(slots=True, kw_only=True)
class Machine:
    """One session of this machine. `work` holds the attempts' working directories, `lock` is held by the guardian too."""

    registration: MachineRegistered
    folder: Path
    work: Path
    user: User | None
    lock: int
    former: Former | None

    @property
    def machine_id(self) -> str:
        return self.registration.machine_id

    @property
    def session(self) -> str:
        return self.registration.session

    @property
    def cgroup(self) -> str:
        """The name of the cgroup of this machine's attempts: one for each folder, since machine ids can be repeated."""
        return name_of(self.folder)

    def leave(self) -> None:
        """Give back the folder of working directories, if they are removed; what is left goes at the next start."""
        with contextlib.suppress(OSError):
            self.work.rmdir()

    def begin(self, *, guardian: int, contained: bool, cgroups: bool) -> None:
        """The guardian is there: settle what is known of the former session, and what the next one must know of this one.

        That nothing of the former session lives is proven where its attempts ended with its guardian, or were in cgroups
        that have just been killed.
        """
        former = self.former
        if former is not None and (former.contained or (former.cgroups and cgroups)):
            self.registration = self.registration.model_copy(update={"previous_session": former.session})
        state = {
            "session": self.session,
            "boot_id": self.registration.boot_id,
            "guardian": guardian,
            "contained": contained,
            "cgroups": cgroups,
        }
        partial = self.folder / "session.json.new"
        partial.write_bytes(orjson.dumps(state))
        partial.replace(self.folder / "session.json")


def open_machine(settings: Settings) -> Machine:
    """Take this machine's folder, wait until a former guardian has ended what it held, and begin a session.

    Raises ConfigurationError, and JobstreamError where another agent has the folder.
    """
    if settings.data is None:
        raise ConfigurationError("the agent needs a data folder: set JOBSTREAM_DATA or --data")
    home = settings.data.resolve() / "agents"
    try:
        home.mkdir(parents=True, exist_ok=True)
        machine_id = settings.machine_id or _default_machine_id(home)
        folder = home / machine_id
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise ConfigurationError(f"the agent cannot use its data folder {home}: {error}") from None
    user = job_user(settings.run_as)
    registration = _registration(settings, machine_id)
    _lock_agent(folder)
    lock, former = _await_former_guardian(folder)
    work = _work_folder(folder, user)
    return Machine(
        registration=registration,
        folder=folder,
        work=work,
        user=user,
        lock=lock,
        former=_former(former, registration.boot_id),
    )


def name_of(folder: Path) -> str:
    """A name for what belongs to a machine's folder but cannot be in it."""
    return f"jobstream-{hashlib.blake2b(str(folder).encode(), digest_size=8).hexdigest()}"


def job_user(run_as: str | None) -> User | None:
    """Whom jobs run as; None: whom the agent runs as. Raises ConfigurationError."""
    if os.geteuid() != 0:
        own = pwd.getpwuid(os.geteuid()).pw_name if run_as is not None else None
        if run_as != own:
            raise ConfigurationError(f"only an agent that is root can run jobs as another user; this one is {own}")
        return None
    if run_as == "root":
        return None
    try:
        found = pwd.getpwnam(run_as or DEFAULT_USER)
    except KeyError:
        raise ConfigurationError(
            f"there is no user {run_as or DEFAULT_USER!r} to run jobs as: name one with --run-as (root only if you must)"
        ) from None
    groups = os.getgrouplist(found.pw_name, found.pw_gid)
    return User(uid=found.pw_uid, gid=found.pw_gid, groups=tuple(groups))


def _registration(settings: Settings, machine_id: str) -> MachineRegistered:
    cpu_millis = int(settings.cpu * 1000) if settings.cpu is not None else own_cpu_millis()
    memory_mib = int(settings.memory_gb * 1024) if settings.memory_gb is not None else own_memory_mib()
    try:
        return MachineRegistered(
            machine_id=machine_id,
            session=new_event_id(),
            boot_id=Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
            resources=Resources(cpu_millis=min(cpu_millis, CPU_MILLIS_MAX), memory_mib=min(memory_mib, MEMORY_MIB_MAX)),
            labels=settings.labels,
        )
    except ValidationError as error:
        raise ConfigurationError(f"this machine cannot be offered: {describe(error)}") from None


def own_cpu_millis() -> int:
    """What this process may use: the processors it may run on, less where its cgroup (version 2) allows less."""
    millis = len(os.sched_getaffinity(0)) * 1000
    with contextlib.suppress(OSError, ValueError):
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        if quota != "max":
            millis = min(millis, int(quota) * 1000 // int(period))
    return max(1, millis)


def own_memory_mib() -> int:
    """The machine's memory, less where the cgroup (version 2) of this container allows less."""
    found = re.search(r"^MemTotal:\s+(\d+) kB$", Path("/proc/meminfo").read_text(), re.MULTILINE)
    assert found is not None
    mib = int(found[1]) // 1024
    with contextlib.suppress(OSError, ValueError):
        mib = min(mib, int(Path("/sys/fs/cgroup/memory.max").read_text()) // (1024 * 1024))
    return max(1, mib)


def _default_machine_id(home: Path) -> str:
    """The host's name with a suffix, made once and kept: host names are not unique."""
    kept = home / "machine-id"
    with contextlib.suppress(FileNotFoundError):
        name = kept.read_text().strip()
        if not re.fullmatch(MACHINE_ID_PATTERN, name):
            raise ConfigurationError(f"{kept} holds no machine id: remove it, or set JOBSTREAM_MACHINE_ID")
        return name
    host = re.sub(r"[^A-Za-z0-9._-]", "-", socket.gethostname())[:64].strip("-._") or "machine"
    name = f"{host}-{secrets.token_hex(4)}"
    partial = home / f"machine-id.{secrets.token_hex(4)}"
    partial.write_text(name + "\n")
    try:
        os.link(partial, kept)  # fails where another agent was faster: one name, whoever made it
    except FileExistsError:
        return kept.read_text().strip()
    finally:
        partial.unlink()
    return name


def _lock_agent(folder: Path) -> None:
    """Held as long as this process lives."""
    descriptor = os.open(folder / "agent.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise JobstreamError(
            f"another agent runs with the folder {folder}: stop it, or give this one another machine id or data folder"
        ) from None


def _await_former_guardian(folder: Path) -> tuple[int, dict[str, Any] | None]:
    """The guardian's lock, once no former guardian has it, and what the former session left written."""
    former: dict[str, Any] | None = None
    with contextlib.suppress(OSError, orjson.JSONDecodeError):
        former = orjson.loads((folder / "session.json").read_bytes())
    lock = os.open(folder / "guardian.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    until = time.monotonic() + OLD_GUARDIAN_WAIT_S
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until:
                raise JobstreamError(
                    f"the guardian of this machine's former agent does not end (lock {folder / 'guardian.lock'}): "
                    "find it with `pgrep -f jobstream.agent.guardian` and kill it"
                ) from None
            time.sleep(OLD_GUARDIAN_ASK_S)
        else:
            return lock, former


def _former(state: dict[str, Any] | None, boot_id: str) -> Former | None:
    if state is None or state.get("boot_id") != boot_id:
        return None
    return Former(session=str(state["session"]), contained=bool(state["contained"]), cgroups=bool(state.get("cgroups")))


def _work_folder(folder: Path, user: User | None) -> Path:
    """An empty folder for working directories that the jobs' user can reach."""
    work = folder / "work"
    if user is not None and not all(_enterable(parent, user) for parent in folder.parents):
        work = WORK_FOLDER_FALLBACK / name_of(folder)
    work.mkdir(exist_ok=True)
    found = work.lstat()
    if work.is_symlink() or found.st_uid != os.geteuid():
        raise ConfigurationError(f"the folder {work} for jobs' working directories belongs to somebody else: remove it")
    work.chmod(0o711)  # jobs enter, but do not see each other's folders
    folder.chmod(0o711)
    for left in work.iterdir():
        shutil.rmtree(left, ignore_errors=True)
    return work


def _enterable(folder: Path, user: User) -> bool:
    found = folder.stat()
    if found.st_uid == user.uid:
        return bool(found.st_mode & 0o100)
    if found.st_gid in user.groups:
        return bool(found.st_mode & 0o010)
    return bool(found.st_mode & 0o001)
