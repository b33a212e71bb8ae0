"""A network boot inside an outer guest, as in `tcg/kvm`: everything runs there, and only the findings come back."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from guestmark.core.cause import Cause
from guestmark.core.errors import MachineError, UsageError
from guestmark.core.metric import Measurement
from guestmark.core.model import Cell
from guestmark.core.platform_spec import PlatformSpec
from guestmark.core.trial_order import TrialOrder
from guestmark.core.units import format_size
from guestmark.platforms.base import Machine, Platform
from guestmark.platforms.guest import Guest
from guestmark.platforms.qemu.nested.platform import NestedPlatform
from guestmark.setting.machine import MEMORY, SMP
from guestmark.workloads import netboot
from guestmark.workloads.common.metrics import to_measurements
from guestmark.workloads.netboot import InnerBoot

_READY_S = 180.0
# Seconds for a boot inside, in addition to the limit of the downloads.
_BOOT_S = 400.0
# Room for captures as a multiple of the files' size: captures are kept in the outer guest's memory.
_CAPTURES = 1.6
_KEPT_VARIABLES = (
    "HOME",
    "PATH",
    "XDG_CACHE_HOME",
    "GUESTMARK_AGENT",
    "GUESTMARK_CAPTURE",
    "GUESTMARK_ROMS",
    "LANG",
)


class Measured(msgspec.Struct, tag="measured", kw_only=True):
    """The result of a successful boot inside: values by metric, remarks for the user, and findings."""

    values: dict[str, float]
    warnings: list[str]
    boot: InnerBoot


class Failed(msgspec.Struct, tag="failed", kw_only=True):
    """The result of a failed boot inside: the parts of the error."""

    message: str
    hint: str
    cause: Cause
    console: str


Reply = Measured | Failed


@dataclass(frozen=True, slots=True)
class NestedResult:
    """The result of one boot inside an outer guest."""

    measurements: list[Measurement]
    warnings: list[str]
    boot: InnerBoot


def find_innermost_platform(platform: PlatformSpec) -> str:
    """Returns the innermost platform of a nested one.

    Raises `UsageError` for platforms that boot no firmware, and for too many layers.
    """
    if len(platform.layers) > 2 or not all(layer.description.boots_firmware for layer in platform.layers):
        raise UsageError(
            f"a network boot cannot be measured on {platform}",
            hint="use --on tcg, kvm or one inside the other",
        )
    return platform.inner.kind


@contextlib.contextmanager
def start_outer_guest(platform: Platform, cell: Cell, memory: int, moved: int) -> Iterator[Machine]:
    """Starts the outer guest; `memory` is the inner machine's memory, `moved` the size of all files, both in bytes."""
    if not isinstance(platform, NestedPlatform):
        raise UsageError(f"{cell.platform} is not a nested platform", hint="use e.g. tcg/kvm")
    room = -(-int(memory + _CAPTURES * moved) // (64 << 20)) * (64 << 20)
    sized = replace(cell, factors={MEMORY.name: format_size(room), SMP.name: str(cell.levels.get(SMP) or 1)})
    with platform.start_outer(sized, _READY_S) as guest:
        yield guest


def run_inside(guest: Guest, cell: Cell, limit_s: float) -> NestedResult:
    """Runs one boot with its downloads in the outer guest, and returns its results.

    Raises `MachineError` with the reason and the console from inside.
    """
    order = TrialOrder.from_cell(cell, limit_s, platform=PlatformSpec((cell.platform.inner,)))
    source = str(Path(__file__).resolve().parents[3])
    code = (
        f"import sys; sys.path.insert(0, {source!r}); "
        "from guestmark.workloads.netboot.inside import main; main(sys.argv[1])"
    )
    environment = {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ}
    done = guest.agent.exec(
        [sys.executable, "-I", "-c", code, order.encode()], env=environment, timeout_s=limit_s + _BOOT_S
    )
    lines = done.stdout.splitlines() or [b""]
    try:
        reply: Reply = msgspec.json.decode(lines[-1], type=Reply)
    except msgspec.DecodeError:
        said = done.stderr.decode(errors="replace").strip().splitlines()[-1:] or ["it printed nothing"]
        raise MachineError(
            f"the boot inside the outer guest failed: {said[0]}", console=guest.console()
        ) from None
    if isinstance(reply, Failed):
        raise MachineError(
            f"inside {cell.platform.outer}: {reply.message}",
            hint=reply.hint,
            cause=reply.cause,
            console=reply.console,
        )
    values = []
    for metric in netboot.list_round_metrics(cell.workload.read_params(netboot.NetbootParams)):
        if metric.name in reply.values:
            values.append((metric, reply.values[metric.name]))
    return NestedResult(to_measurements(values), reply.warnings, reply.boot)
