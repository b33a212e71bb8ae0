"""Runs a command that must not use ptrace, as in a container with a strict seccomp profile.

Usage: `without_ptrace.py COMMAND`. With `--kill`, a process that tries is killed instead of getting an error.
"""

import ctypes
import os
import struct
import sys

_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 38, 22, 2
_LOAD, _JUMP_EQUAL, _RETURN = 0x20, 0x15, 0x06  # classic BPF: ld [k]; jeq #k; ret #k
_NUMBER, _ARCHITECTURE = 0, 4  # offsets in struct seccomp_data
_PTRACE = {
    "x86_64": (0xC000003E, 101),
    "aarch64": (0xC00000B7, 117),
}  # the architecture's number, and the call's
_ALLOW, _REFUSE, _KILL_PROCESS = 0x7FFF0000, 0x00050001, 0x80000000  # refuse: EPERM


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]


def forbid_ptrace(action: int = _REFUSE) -> None:
    """Make ptrace fail as `action` says, in this process and all that it starts."""
    architecture, ptrace = _PTRACE[os.uname().machine]
    code = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_JUMP_EQUAL, 0, 3, architecture),
        (_LOAD, 0, 0, _NUMBER),
        (_JUMP_EQUAL, 0, 1, ptrace),
        (_RETURN, 0, 0, action),
        (_RETURN, 0, 0, _ALLOW),
    ]
    text = b"".join(struct.pack("HBBI", *line) for line in code)
    buffer = ctypes.create_string_buffer(text, len(text))
    program = _Program(len(code), ctypes.addressof(buffer))
    libc = ctypes.CDLL(None, use_errno=True)
    for arguments in (
        (_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
        (_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0),
    ):
        if libc.prctl(*arguments):
            raise OSError(ctypes.get_errno(), "prctl")


if __name__ == "__main__":
    words = sys.argv[1:]
    forbid_ptrace(_KILL_PROCESS if words[0] == "--kill" else _REFUSE)
    words = words[words[0] == "--kill" :]
    os.execvp(words[0], words)
