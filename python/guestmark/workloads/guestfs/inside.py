"""guestfish inside an outer guest: its own guest is then a nested one, as in `tcg/kvm`.

The outer guest shares the host's root, so guestfish, its appliance and its kernel are the host's. Marks are lines of
output, and their time is when they arrive here.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from guestmark.core.errors import AttestationError, WorkloadError
from guestmark.core.platform_spec import HOST
from guestmark.platforms.host.platform import HostPlatform
from guestmark.platforms.nested.platform import READY_DEADLINE_S, NestedPlatform
from guestmark.platforms.qemu.accelerators import KVM, TCG
from guestmark.setting.machine import PLACEMENT
from guestmark.workloads.guestfs import libguestfs
from guestmark.workloads.guestfs.libguestfs import Mark

if TYPE_CHECKING:
    from guestmark.core.model import Cell
    from guestmark.platforms.base import Machine, Platform

_SCRIPT = "/tmp/guestmark-session"  # in the outer guest, where all that is written is thrown away
_MARK = "guestmark-mark "
_KVM = "guestmark-kvm "
_ATTEST = f"!echo {_KVM}$(ls -l /proc/[0-9]*/fd 2>/dev/null | grep -c kvm-vm)"
_KEPT = 300  # characters of output that a reason may quote


@dataclass(frozen=True, slots=True)
class Session:
    """When guestfish was started and when each mark arrived, on the host's monotonic clock; and what it printed."""

    started_at: float
    marks: dict[str, float]
    printed: str


def machine(platform: Platform, cell: Cell) -> AbstractContextManager[Machine]:
    """Where guestfish runs: this host, or the outer guest of a nested platform; what is inside it starts itself."""
    if isinstance(platform, NestedPlatform):
        return platform.outer(cell, READY_DEADLINE_S)
    where = {name: level for name, level in cell.factors.items() if name == PLACEMENT.name}
    return HostPlatform().start(replace(cell, platform=HOST, factors=where))


def run(outer: Machine, accelerator: str, script: Sequence[str | Mark], timeout_s: float) -> Session:
    """As `libguestfs.run`, in the guest `outer`; after the first mark the accelerator is checked.

    Raises `WorkloadError` with what guestfish said when a command fails or time is up, `AttestationError` when its QEMU
    runs with another accelerator.
    """
    environment = {
        **libguestfs.prepare(accelerator),
        **{name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ},
        "TMPDIR": "/dev/shm",
    }
    agent = outer.agent
    lines: list[str] = []
    for step in script:
        if isinstance(step, Mark):
            lines += [f"!echo {_MARK}{step.name}"] + ([_ATTEST] if _MARK not in "".join(lines) else [])
        else:
            lines.append(step)
    agent.write_file(_SCRIPT, ("\n".join(lines) + "\n").encode())
    deadline = time.monotonic() + timeout_s
    started_at = time.monotonic()
    guestfish = agent.background([libguestfs.GUESTFISH, "-f", _SCRIPT], env=environment)
    marks: dict[str, float] = {}
    for name in (step.name for step in script if isinstance(step, Mark)):
        sign = f"{_MARK}{name}\n".encode()
        arrived = guestfish.wait(deadline - time.monotonic(), _holds(sign))
        if sign not in guestfish.output:
            how = "ended before" if arrived else f"did not within {timeout_s:.0f} s get to"
            guestfish.signal(9)
            raise WorkloadError(f"guestfish {how} {name!r}: {_last_words(guestfish.text())}")
        marks[name] = time.monotonic()
    if not guestfish.wait(max(1.0, deadline - time.monotonic())) or guestfish.ended is None:
        raise WorkloadError(f"guestfish did not end: {_last_words(guestfish.text())}")
    if guestfish.ended.status != 0:
        raise WorkloadError(
            f"guestfish ended with status {guestfish.ended.status}: {_last_words(guestfish.text())}"
        )
    printed = guestfish.text()
    _attest(printed, accelerator)
    return Session(started_at, marks, printed)


def _holds(sign: bytes) -> Callable[[bytes], bool]:
    return lambda said: sign in said


def _attest(printed: str, accelerator: str) -> None:
    said = next((line for line in printed.splitlines() if line.startswith(_KVM)), _KVM)
    machines = said.removeprefix(_KVM).strip()
    found = {"": "nothing", "0": TCG.name}.get(machines, KVM.name)
    if found != accelerator:
        raise AttestationError(
            f"libguestfs does not run as was asked: asked {accelerator}, found {found} in the outer guest"
        )


def _last_words(printed: str) -> str:
    lines = [line.strip() for line in printed.splitlines() if line.strip() and not line.startswith(_MARK)]
    errors = [line for line in lines if "error" in line.lower()]
    return (errors or lines or ["it printed nothing"])[-1][:_KEPT]
