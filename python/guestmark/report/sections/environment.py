"""What a reader must know about the machine before believing a figure, and proof that both sides ran the same program.

The list is the one that the author of a published comparison kept: processor, frequency scaling, memory, disks, the
hypervisor's command line, the guest's missing processor features, and whether both sides had the same binary.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from guestmark.core.findings import programs
from guestmark.core.model import Trial, TrialStatus
from guestmark.ledger.model import StoredRun
from guestmark.page.nodes import Definitions
from guestmark.report.sections import elsewhere, places

_HERE = "this host"
_SHORT = 16  # digits of a digest that are shown
_FLAGS_SHOWN = 12
_NOT_AFFECTED = "Not affected"  # as the kernel writes it


@dataclass(frozen=True, slots=True)
class Binary:
    """A measured program: digests by where they were taken, and how many trials reported one."""

    path: str
    digests: Mapping[str, tuple[str, ...]]  # of each platform, and of this host as the control plane sees it
    trials: int

    @property
    def same(self) -> bool:
        """Whether there is only one digest."""
        return len({digest for digests in self.digests.values() for digest in digests}) == 1


@dataclass(frozen=True, slots=True)
class MachineKind:
    """What the machines of a platform were, from the first trial that got far enough."""

    platform: str
    command_line: tuple[str, ...]
    flags_missing: tuple[str, ...] | None  # None: not known


def binaries(run: StoredRun) -> list[Binary]:
    """The programs of all trials, in the order they were met."""
    platform_of = {cell.id: str(cell.platform) for cell in run.plan.cells}
    found: dict[str, dict[str, dict[str, None]]] = {}
    counts: dict[str, int] = {}
    for trial in run.trials:
        for program in programs(trial.facts):
            if not program.sha256:
                continue
            sides = found.setdefault(program.path, {})
            platform = platform_of.get(trial.cell_id, trial.cell_id)
            sides.setdefault(platform, {})[program.sha256] = None
            if program.host_sha256:
                sides.setdefault(_HERE, {})[program.host_sha256] = None
            counts[program.path] = counts.get(program.path, 0) + 1
    return [
        Binary(path, {side: tuple(digests) for side, digests in sides.items()}, counts[path])
        for path, sides in found.items()
    ]


def machines(run: StoredRun) -> list[MachineKind]:
    """The guests of each platform."""
    found: dict[str, MachineKind] = {}
    by_id = {cell.id: cell for cell in run.plan.cells}
    for trial in _good_first(run.trials):
        cell = by_id.get(trial.cell_id)
        if (
            cell is None
            or not cell.platform.is_guest
            or str(cell.platform) in found
            or not trial.command_line
        ):
            continue
        guest = places.guest_of(trial.facts)
        missing = None if guest is None else tuple(guest.cpu_flags_missing)
        found[str(cell.platform)] = MachineKind(str(cell.platform), trial.command_line, missing)
    return list(found.values())


def rows(run: StoredRun, *, whole: bool = False) -> list[tuple[str, str]]:
    """Names and values for a table; `whole` gives every flag and digest in full."""
    said = [*_host_rows(run.environment)]
    said.append(("placement", places.placement(run.trials)))
    said += elsewhere.machines(run).items()
    said += [
        (f"{platform} mitigations", _mitigations(found))
        for platform, found in elsewhere.mitigations(run).items()
    ]
    for binary in binaries(run):
        said.append(("program", _proof(binary, whole=whole)))
    for machine in machines(run):
        if machine.flags_missing is not None:
            said.append((f"{machine.platform} lacks", _flags(machine.flags_missing, whole=whole)))
        said.append((f"{machine.platform} command", shlex.join(machine.command_line)))
    return [(name, value) for name, value in said if value]


def section(run: StoredRun) -> Definitions | None:
    """Everything, in full; None when nothing is known."""
    found = rows(run, whole=True)
    return Definitions("What it was measured on", tuple(found)) if found else None


def summary(run: StoredRun) -> str:
    """The host in one line; empty when nothing is known."""
    known = dict(_host_rows(run.environment))
    processor = run.environment.get("processor", {})
    return _joined(
        processor.get("model"),
        _counted(processor.get("count"), "processor"),
        known.get("memory", "").partition(",")[0],
        _said("kernel", run.environment.get("kernel", {}).get("release")),
        "itself a guest" if known.get("virtualization") else "",
    )


def document(run: StoredRun) -> dict[str, Any]:
    """For the result document: `programs` and `machines`."""
    return {
        "programs": [
            {
                "path": binary.path,
                "same": binary.same,
                "trials": binary.trials,
                "sha256": {side: list(digests) for side, digests in binary.digests.items()},
            }
            for binary in binaries(run)
        ],
        "machines": [
            {
                "platform": machine.platform,
                "command_line": list(machine.command_line),
                "cpu_flags_missing": None if machine.flags_missing is None else list(machine.flags_missing),
            }
            for machine in machines(run)
        ],
    }


def _host_rows(environment: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    processor = environment.get("processor", {})
    yield (
        "processor",
        _joined(
            processor.get("model"),
            _counted(processor.get("count"), "processor"),
            _said("microcode", processor.get("microcode")),
            _said("SMT", {"1": "on", "0": "off"}.get(processor.get("smt", ""))),
        ),
    )
    frequency = environment.get("frequency", {})
    yield (
        "frequency",
        _joined(
            _said("governor", frequency.get("governor")),
            _said("driver", frequency.get("driver")),
            _range(frequency),
            _said("boost", {True: "on", False: "off"}.get(frequency.get("boost"))),
        )
        or ("scaling is not visible here" if processor else ""),
    )
    yield "quiet host", "; ".join(f"{name}: {value}" for name, value in environment.get("quiet", {}).items())
    yield (
        "memory",
        _joined(
            _bytes(environment.get("memory_bytes")), _said("swap", _bytes(environment.get("swap_bytes")))
        ),
    )
    for disk in environment.get("disks", ()):
        kind = {True: "rotational", False: "not rotational"}.get(disk.get("rotational"))
        yield (
            f"disk {disk.get('name')}",
            _joined(
                _bytes(disk.get("bytes")),
                disk.get("model"),
                kind,
                _said("scheduler", disk.get("scheduler")),
                disk.get("write_cache"),
            ),
        )
    for directory, mount in environment.get("filesystems", {}).items():
        yield directory, f"{mount['type']} on {mount['device']} ({mount['options']})"
    kernel = environment.get("kernel", {})
    yield "kernel", _joined(kernel.get("release"), environment.get("distribution"))
    virtualization = environment.get("virtualization", {})
    if virtualization.get("hypervisor"):
        yield (
            "virtualization",
            _joined(
                "this host is itself a guest", virtualization.get("vendor"), virtualization.get("product")
            ),
        )
    yield "mitigations", _mitigations(environment.get("mitigations", {}))
    programs = environment.get("programs", {})
    yield (
        "versions",
        "; ".join(
            str(version) if name.partition("-")[0] in str(version).lower() else f"{name} {version}"
            for name, version in programs.items()
        ),
    )


def _mitigations(found: Mapping[str, str]) -> str:
    """What the kernel says of those of the processor's flaws that there are, and how many there are not."""
    told = [f"{name}: {said}" for name, said in found.items() if said != _NOT_AFFECTED]
    free = len(found) - len(told)
    if free:
        told.append(
            f"{_counted(free, 'other')}: not affected"
            if told
            else "not affected by any that the kernel knows"
        )
    return "; ".join(told)


def _proof(binary: Binary, *, whole: bool) -> str:
    if binary.same:
        (digest,) = {digest for digests in binary.digests.values() for digest in digests}
        shown = digest if whole else f"{digest[:_SHORT]}…"
        sides = ", ".join(side for side in binary.digests if side != _HERE or "host" not in binary.digests)
        return f"{binary.path} is the same on {sides}: SHA-256 {shown} in {binary.trials} of {binary.trials} trials"
    told = "; ".join(
        f"{side} {' and '.join(digest if whole else digest[:_SHORT] for digest in digests)}"
        for side, digests in binary.digests.items()
    )
    return f"{binary.path} is NOT the same: SHA-256 {told}"


def _flags(missing: tuple[str, ...], *, whole: bool) -> str:
    if not missing:
        return "no processor feature of the host"
    shown = " ".join(missing if whole else missing[:_FLAGS_SHOWN])
    left = 0 if whole else len(missing) - _FLAGS_SHOWN
    more = f" … and {left} more" if left > 0 else ""
    return f"{len(missing)} processor features of the host: {shown}{more}"


def _good_first(trials: Iterable[Trial]) -> list[Trial]:
    return sorted(trials, key=lambda trial: trial.status is not TrialStatus.OK)


def _joined(*parts: object) -> str:
    return ", ".join(str(part) for part in parts if part)


def _said(name: str, value: object) -> str:
    return f"{name} {value}" if value else ""


def _counted(count: object, what: str) -> str:
    return "" if count is None else f"{count} {what}{'' if count == 1 else 's'}"


def _bytes(size: object) -> str:
    return f"{size / 1e9:.1f} GB" if isinstance(size, int | float) else ""


def _range(frequency: Mapping[str, Any]) -> str:
    ends = [frequency.get("minimum_khz"), frequency.get("maximum_khz")]
    try:
        low, high = (int(str(end)) / 1e6 for end in ends)
    except ValueError:
        return ""
    return f"{low:.2f} to {high:.2f} GHz"
