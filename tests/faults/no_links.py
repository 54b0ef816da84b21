"""A file system that refuses calls: the kernel fails them for this process and all that it starts.

No root and no mount is needed: a filter of system calls (seccomp) that a process gives itself. It cannot be taken
off again, so it is used in processes of their own. Threads that run already are not concerned: install it first.
"""

from __future__ import annotations

import ctypes
import platform
from typing import ClassVar

# Numbers of the calls, by machine.
_CALLS = {
    "x86_64": {"link": (86, 265), "rename": (82, 264, 316)},
    "aarch64": {"link": (37,), "rename": (38, 276)},
}
_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _MODE_FILTER = 38, 22, 2
_LOAD_NUMBER, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _FAIL = 0x7FFF0000, 0x00050000


class _Instruction(ctypes.Structure):
    _fields_: ClassVar = [
        ("code", ctypes.c_ushort),
        ("yes", ctypes.c_ubyte),
        ("no", ctypes.c_ubyte),
        ("k", ctypes.c_uint),
    ]


class _Program(ctypes.Structure):
    _fields_: ClassVar = [("length", ctypes.c_ushort), ("start", ctypes.POINTER(_Instruction))]


def refuse(*names: str, code: int) -> None:
    """Make calls fail with an error code from now on: ``link``, ``rename``."""
    numbers = [number for name in names for number in _CALLS[platform.machine()][name]]
    lines = [_Instruction(_LOAD_NUMBER, 0, 0, 0)]
    lines += [_Instruction(_JUMP_IF_EQUAL, len(numbers) - place, 0, n) for place, n in enumerate(numbers)]
    lines += [_Instruction(_RETURN, 0, 0, _ALLOW), _Instruction(_RETURN, 0, 0, _FAIL | code)]
    program = _Program(len(lines), (_Instruction * len(lines))(*lines))
    libc = ctypes.CDLL(None, use_errno=True)
    # A process that may gain no privileges may filter its own calls.
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.prctl(
        _PR_SET_SECCOMP, _MODE_FILTER, ctypes.byref(program), 0, 0
    ):
        raise OSError(ctypes.get_errno(), "could not install the filter of system calls")
