"""A process that hangs for good: it turns in a circle, and every signal but those that nobody can block is blocked."""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct

from guestmark.core import procfs

_ATTACH, _DETACH, _GET, _SET, _POKE, _BLOCK = 16, 17, 12, 13, 4, 0x420B  # requests of `ptrace`
_REGISTERS = 27  # of a process on x86_64, of 8 bytes each
_CALL, _NEXT = 15, 16  # the system call that is to be begun again, and the next instruction, among them
_TO_ITSELF = b"\xeb\xfe"  # a jump to where it is
_WAIT_ALL = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)

CAN_BE_DONE = os.uname().machine == "x86_64" and os.getuid() == 0


def hang(pid: int) -> None:
    """Makes every thread of a process turn in a circle, unless it ends meanwhile. Raises `OSError`."""
    hung: set[int] = set()
    while threads := set(procfs.list_threads(pid)) - hung:
        hung |= threads
        for thread in sorted(threads):
            with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
                _hang(thread)


def _hang(thread: int) -> None:
    _ptrace(_ATTACH, thread, 0, None)
    os.waitpid(thread, _WAIT_ALL)
    every = ctypes.create_string_buffer(b"\xff" * 8)
    _ptrace(_BLOCK, thread, 8, every)
    registers = (ctypes.c_ulonglong * _REGISTERS)()
    _ptrace(_GET, thread, 0, registers)
    at = registers[_NEXT] & ~7  # words are written: this one is the loop's alone, as it is never left
    registers[_NEXT], registers[_CALL] = at, 2**64 - 1
    word = _TO_ITSELF + b"\x90" * 6
    _ptrace(_POKE, thread, at, ctypes.c_void_p(struct.unpack("<Q", word)[0]))
    _ptrace(_SET, thread, 0, registers)
    _ptrace(_DETACH, thread, 0, None)


def _ptrace(request: int, pid: int, address: int, data: object) -> None:
    if _libc.ptrace(ctypes.c_long(request), ctypes.c_long(pid), ctypes.c_void_p(address), data) < 0:
        raise OSError(ctypes.get_errno(), f"ptrace {request}: {os.strerror(ctypes.get_errno())}")
