"""The `ptrace` that User-Mode Linux is given: it counts, and completes states that are larger than its kernel knows."""

import ctypes
import errno
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from guestmark.core.architectures import find_host_architecture
from guestmark.core.own_program import find_agent_binary

pytestmark = pytest.mark.skipif(
    not find_host_architecture().user_mode_linux, reason="there is no User-Mode Linux here"
)

GETREGSET, SETREGSET, SEIZE, INTERRUPT, DETACH = 0x4204, 0x4205, 0x4206, 0x4207, 17
XSTATE = 0x202
XMM0 = 160  # of the legacy area that every state begins with


class Iovec(ctypes.Structure):
    """`struct iovec`."""

    _fields_ = (("base", ctypes.c_void_p), ("len", ctypes.c_size_t))


class Tracer:
    """`ptrace` of a library, for one process."""

    def __init__(self, library: Path | None, pid: int) -> None:
        self.call = ctypes.CDLL(str(library) if library else None, use_errno=True).ptrace
        self.call.restype = ctypes.c_long
        self.call.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_long, ctypes.c_void_p]
        self.pid = pid

    def get(self, size: int) -> bytes:
        buffer = ctypes.create_string_buffer(size)
        vector = Iovec(ctypes.addressof(buffer), size)
        assert self.call(GETREGSET, self.pid, XSTATE, ctypes.addressof(vector)) == 0
        return buffer.raw[: vector.len]

    def set(self, state: bytes) -> int:
        """0, or the number of the error."""
        buffer = ctypes.create_string_buffer(state, len(state))
        vector = Iovec(ctypes.addressof(buffer), len(state))
        failed = self.call(SETREGSET, self.pid, XSTATE, ctypes.addressof(vector)) != 0
        return ctypes.get_errno() if failed else 0


@pytest.fixture
def stopped() -> Iterator[int]:
    with subprocess.Popen(["sleep", "60"]) as child:
        plain = Tracer(None, child.pid)
        assert plain.call(SEIZE, child.pid, 0, None) == 0
        assert plain.call(INTERRUPT, child.pid, 0, None) == 0
        assert os.waitpid(child.pid, 0)[0] == child.pid
        yield child.pid
        plain.call(DETACH, child.pid, 0, None)
        child.send_signal(signal.SIGKILL)


def library() -> Path:
    """The newest that was built with the agent."""
    found = find_agent_binary().parent.glob("build/guestmark-agent-*/out/registers.so")
    return max(found, key=lambda path: path.stat().st_mtime)


def test_a_state_that_is_too_short_for_the_kernel_is_completed(stopped: int) -> None:
    plain, mended = Tracer(None, stopped), Tracer(library(), stopped)
    whole = plain.get(1 << 16)
    short = bytearray(whole[:-64])
    assert plain.set(bytes(short)) == errno.EFAULT, "this kernel takes a part of the state"
    short[XMM0 : XMM0 + 16] = bytes(range(16))
    short[512] |= 2  # the header's word that says that these registers are in use
    assert mended.set(bytes(short)) == 0
    found = plain.get(1 << 16)
    assert found[XMM0 : XMM0 + 16] == bytes(range(16))
    assert len(found) == len(whole)
    assert mended.set(whole) == 0
    assert plain.get(1 << 16) == whole


def test_all_else_is_as_it_was(stopped: int) -> None:
    mended = Tracer(library(), stopped)
    assert mended.get(832) == Tracer(None, stopped).get(832)
    assert mended.call(SETREGSET, 0, XSTATE, ctypes.addressof(Iovec(None, 0))) == -1
    assert ctypes.get_errno() == errno.ESRCH


def test_requests_to_resume_are_counted_and_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a process of its own, as the library opens its file once."""
    stops = tmp_path / "stops"
    stops.write_bytes(bytes(8))
    program = (
        "import ctypes, os, subprocess, sys\n"
        "call = ctypes.CDLL(sys.argv[1], use_errno=True).ptrace\n"
        "call.argtypes = [ctypes.c_long] * 4\n"
        "child = subprocess.Popen(['true'], preexec_fn=lambda: call(0, 0, 0, 0))\n"  # TRACEME
        "os.waitpid(child.pid, 0)\n"
        "for _ in range(7):\n"
        "    assert call(24, child.pid, 0, 0) == 0\n"  # SYSCALL
        "    os.waitpid(child.pid, 0)\n"
        "    call(12, child.pid, 0, 0)\n"  # GETREGS, into nothing
        "assert call(7, 2**22 + 1, 0, 0) == -1\n"  # CONT of nobody
        "child.kill()\n"
    )
    with stops.open("r+b") as file:
        monkeypatch.setenv("GUESTMARK_STOPS", str(file.fileno()))
        subprocess.run(
            [sys.executable, "-c", program, str(library())], check=True, pass_fds=(file.fileno(),), timeout=60
        )
    assert int.from_bytes(stops.read_bytes(), sys.byteorder) == 7
