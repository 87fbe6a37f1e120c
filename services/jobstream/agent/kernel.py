"""System calls that Python 3.11 has no function for: prctl, unshare, setns, mount."""

import ctypes
import os
from typing import Final

PR_SET_PDEATHSIG: Final = 1
PR_SET_CHILD_SUBREAPER: Final = 36
PR_SET_NO_NEW_PRIVS: Final = 38
CLONE_NEWNS: Final = 0x00020000
CLONE_NEWPID: Final = 0x20000000
MS_NOSUID: Final = 0x2
MS_NODEV: Final = 0x4
MS_NOEXEC: Final = 0x8
MS_REC: Final = 0x4000
MS_SLAVE: Final = 0x80000

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def set_no_new_privileges() -> None:
    """No program started from here on gains privileges: set-user-id bits and file capabilities have no effect."""
    _check(_libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl(PR_SET_NO_NEW_PRIVS)")


def become_subreaper() -> None:
    """Descendants whose parent ends become our children."""
    _check(_libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "prctl(PR_SET_CHILD_SUBREAPER)")


def die_with_parent(signal_number: int) -> None:
    """The kernel sends this signal when the parent ends. A change of user clears it."""
    _check(_libc.prctl(PR_SET_PDEATHSIG, signal_number, 0, 0, 0), "prctl(PR_SET_PDEATHSIG)")


def unshare_pid_and_mounts() -> None:
    """The next child is the init of a new PID namespace; mounts from here on are our own."""
    _check(_libc.unshare(CLONE_NEWPID | CLONE_NEWNS), "unshare")


def children_stay_here(own_pid_namespace: int) -> None:
    """Take back `unshare_pid_and_mounts` for children, by a descriptor of our own PID namespace."""
    _check(_libc.setns(own_pid_namespace, CLONE_NEWPID), "setns")


def mount_own_proc() -> None:
    """Show this PID namespace in /proc; what others mount elsewhere still arrives here."""
    _check(_libc.mount(b"none", b"/", None, MS_REC | MS_SLAVE, None), "mount --make-rslave /")
    _check(_libc.mount(b"proc", b"/proc", b"proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, None), "mount /proc")
