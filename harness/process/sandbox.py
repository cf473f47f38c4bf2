"""Shut a client in: no secret of the kit is readable, nothing is writable but its own folder.

A client runs as the same user as the harness, so file modes cannot keep it from the embedded server's
password, from the checkout, or from its own warden. Linux's Landlock can, for any user and without
privileges: a process gives up rights for itself and for all that it starts. Given up here are

* reading and listing the folders that hold secrets, and everything beside the allowed paths;
* writing, making and removing files anywhere but in the private folder and on devices;
* signals to, and tracing of, every process outside, and reading what /proc tells about them.

Where the kernel has no Landlock (macOS, Linux before 5.13), nothing is given up and `shut_in` says so:
there, code that is not trusted needs a container or a user of its own around the whole kit.

Source of the numbers: linux/landlock.h, and the kernel's userspace-api/landlock documentation.
"""

from __future__ import annotations

import ctypes
import os
import stat
import sys
from collections.abc import Iterator, Sequence

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION = 1  # flag: return the ABI's number instead of a rule set
_PATH_BENEATH = 1
_PR_SET_NO_NEW_PRIVS = 38

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_READ = _EXECUTE | _READ_FILE | _READ_DIR
#: Removing and making entries of every kind: bits 4 to 12 of the first ABI.
_CHANGE = _WRITE_FILE | sum(1 << bit for bit in range(4, 13))
_REFER, _TRUNCATE = 1 << 13, 1 << 14  # since ABI 2 and 3
#: What a rule about something that is no folder may name.
_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE
#: What runtimes ask of /proc beside themselves; the rest of it tells about other processes.
_HARMLESS = ("/proc/cpuinfo", "/proc/meminfo", "/proc/stat", "/proc/filesystems", "/proc/sys")
#: Abstract sockets and signals stay inside: since ABI 6.
_SCOPED = 0b11


class _Ruleset(ctypes.Structure):
    _fields_ = (
        ("handled_access_fs", ctypes.c_uint64),
        ("handled_access_net", ctypes.c_uint64),
        ("scoped", ctypes.c_uint64),
    )


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed_access", ctypes.c_uint64), ("parent_fd", ctypes.c_int32))


def shut_in(forbidden: Sequence[str], writable: Sequence[str]) -> bool:
    """Give up all rights but reading outside `forbidden` and writing inside `writable`.

    Args:
        forbidden: Absolute paths of folders that must not be read.
        writable: Absolute paths of folders, or files, that may be changed.

    Returns:
        Whether it was done; False where the kernel cannot.

    Raises:
        OSError: If the kernel can, and refuses.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    abi = libc.syscall(_CREATE_RULESET, None, 0, _VERSION) if sys.platform == "linux" else -1
    if abi < 1:
        return False
    handled = _READ | _CHANGE | (_REFER if abi >= 2 else 0) | (_TRUNCATE if abi >= 3 else 0)
    attributes = _Ruleset(handled, 0, _SCOPED if abi >= 6 else 0)
    ruleset = libc.syscall(_CREATE_RULESET, ctypes.byref(attributes), ctypes.sizeof(attributes), 0)
    if ruleset < 0:
        raise OSError(ctypes.get_errno(), "landlock_create_ruleset")
    try:
        closed = [os.path.realpath(path) for path in (*forbidden, "/proc")]
        for path in (*readable("/", closed), f"/proc/{os.getpid()}", *_HARMLESS):
            _allow(libc, ruleset, path, _READ)
        for path in writable:
            _allow(libc, ruleset, path, handled)
        libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        if libc.syscall(_RESTRICT_SELF, ruleset, 0) != 0:
            raise OSError(ctypes.get_errno(), "landlock_restrict_self")
    finally:
        os.close(ruleset)
    return True


def readable(folder: str, forbidden: Sequence[str]) -> Iterator[str]:
    """Yield the paths below `folder` that together are everything but the forbidden folders.

    A folder on the way to a forbidden one is not yielded itself, only what else is in it.
    """
    if not any(_is_below(path, folder) for path in forbidden):
        yield folder
        return
    try:
        names = os.listdir(folder)
    except OSError:
        return
    for name in names:
        path = os.path.join(folder, name)
        if path in forbidden or os.path.islink(path):
            continue
        yield from readable(path, forbidden)


def _is_below(path: str, folder: str) -> bool:
    return path != folder and path.startswith(folder.rstrip("/") + "/")


def _allow(libc: ctypes.CDLL, ruleset: int, path: str, access: int) -> None:
    """Allow an access to a path and all below it; a path that is gone by now needs no rule."""
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        if not stat.S_ISDIR(os.fstat(fd).st_mode):
            access &= _OF_FILES
        rule = _PathBeneath(access, fd)
        libc.syscall(_ADD_RULE, ruleset, _PATH_BENEATH, ctypes.byref(rule), 0)
    finally:
        os.close(fd)
