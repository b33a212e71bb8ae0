"""Facts about the machine that a reader needs to judge a figure, and proof that both sides ran the same program.

These are the facts that the author of a published comparison recorded: processor, frequency scaling, memory, disks, the
hypervisor's command line, the guest's missing processor features, and whether both sides had the same binary.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

from guestmark.core.findings import list_programs
from guestmark.core.model import TrialStatus
from guestmark.ledger.model import StoredRun
from guestmark.page.nodes import Definitions
from guestmark.report.sections import locations, remote_machines
from guestmark.report.sections.creations import describe_creations
from guestmark.report.sections.disk_images import describe_images

_HERE = "this host"
_DIGEST_DIGITS = 16  # that are shown
_FLAGS_SHOWN = 12
_NOT_AFFECTED = "Not affected"  # as the kernel writes it
_Rows = Iterable[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Binary:
    """A measured program: its digests by the place where they were taken, and how many trials reported one."""

    path: str
    digests: Mapping[str, tuple[str, ...]]  # of each platform, and of this host as the control plane sees it
    trials: int

    @property
    def is_same_everywhere(self) -> bool:
        """Whether there is only one digest."""
        return len(self.distinct_digests) == 1

    @property
    def distinct_digests(self) -> frozenset[str]:
        """The digests, wherever they were taken."""
        return frozenset(chain.from_iterable(self.digests.values()))


@dataclass(frozen=True, slots=True)
class MachineKind:
    """The machines of a platform, as described by the first trial whose machine started."""

    platform: str
    command_line: tuple[str, ...]
    flags_missing: tuple[str, ...] | None  # None: not known


def find_binaries(run: StoredRun) -> list[Binary]:
    """Return the programs of all trials, in the order they first ran."""
    platform_of = {cell.id: str(cell.platform) for cell in run.plan.cells}
    digests: dict[str, dict[str, dict[str, None]]] = {}
    counts: dict[str, int] = {}
    for trial in run.trials:
        platform = platform_of.get(trial.cell_id, trial.cell_id)
        for program in list_programs(trial.facts):
            if not program.sha256:
                continue
            sides = digests.setdefault(program.path, {})
            sides.setdefault(platform, {})[program.sha256] = None
            if program.host_sha256:
                sides.setdefault(_HERE, {})[program.host_sha256] = None
            counts[program.path] = counts.get(program.path, 0) + 1
    binaries = []
    for path, sides in digests.items():
        of_sides = {side: tuple(of_side) for side, of_side in sides.items()}
        binaries.append(Binary(path, of_sides, counts[path]))
    return binaries


def find_machines(run: StoredRun) -> list[MachineKind]:
    """Return the guests of each platform."""
    machines: dict[str, MachineKind] = {}
    by_id = {cell.id: cell for cell in run.plan.cells}
    # The machine of a failed trial may never have started, so good trials come first.
    for trial in sorted(run.trials, key=lambda trial: trial.status is not TrialStatus.OK):
        cell = by_id.get(trial.cell_id)
        if cell is None or not cell.platform.is_guest or not trial.command_line:
            continue
        platform = str(cell.platform)
        if platform not in machines:
            guest = locations.find_inner_guest(trial.facts)
            missing = None if guest is None else tuple(guest.cpu_flags_missing)
            machines[platform] = MachineKind(platform, trial.command_line, missing)
    return list(machines.values())


def make_rows(run: StoredRun, *, whole: bool = False) -> list[tuple[str, str]]:
    """Return names and values for a table; `whole` gives every flag and digest in full."""
    rows = [*_yield_host_rows(run.environment), ("placement", locations.describe_placement(run.trials))]
    rows += remote_machines.describe_machines(run).items()
    rows += describe_images(run).items()
    rows += describe_creations(run).items()
    for platform, flaws in remote_machines.find_mitigations(run).items():
        rows.append((f"{platform} mitigations", _describe_mitigations(flaws)))
    for binary in find_binaries(run):
        rows.append(("program", _describe_binary(binary, whole=whole)))
    for machine in find_machines(run):
        if machine.flags_missing is not None:
            rows.append((f"{machine.platform} lacks", _describe_flags(machine.flags_missing, whole=whole)))
        rows.append((f"{machine.platform} command", shlex.join(machine.command_line)))
    return [(name, value) for name, value in rows if value]


def make_definitions(run: StoredRun) -> Definitions | None:
    """Return all facts in full, as definitions; None if nothing is known."""
    rows = make_rows(run, whole=True)
    return Definitions("What it was measured on", tuple(rows)) if rows else None


def describe_host(run: StoredRun) -> str:
    """Return the host in one line; empty if nothing is known."""
    known = dict(_yield_host_rows(run.environment))
    processor = run.environment.get("processor", {})
    return _join_known(
        processor.get("model"),
        _format_known_count(processor.get("count"), "processor"),
        known.get("memory", "").partition(",")[0],
        _label_value("kernel", run.environment.get("kernel", {}).get("release")),
        "itself a guest" if known.get("virtualization") else "",
    )


def make_document(run: StoredRun) -> dict[str, Any]:
    """Return `programs` and `machines` for the result document."""
    return {
        "programs": [_make_program_document(binary) for binary in find_binaries(run)],
        "machines": [_make_machine_kind_document(machine) for machine in find_machines(run)],
    }


def _make_program_document(binary: Binary) -> dict[str, Any]:
    return {
        "path": binary.path,
        "same": binary.is_same_everywhere,
        "trials": binary.trials,
        "sha256": {side: list(digests) for side, digests in binary.digests.items()},
    }


def _make_machine_kind_document(machine: MachineKind) -> dict[str, Any]:
    missing = machine.flags_missing
    return {
        "platform": machine.platform,
        "command_line": list(machine.command_line),
        "cpu_flags_missing": None if missing is None else list(missing),
    }


def _yield_host_rows(environment: Mapping[str, Any]) -> _Rows:
    yield from _yield_processor_rows(environment)
    yield "quiet host", "; ".join(f"{name}: {value}" for name, value in environment.get("quiet", {}).items())
    swap = _label_value("swap", _format_bytes(environment.get("swap_bytes")))
    yield "memory", _join_known(_format_bytes(environment.get("memory_bytes")), swap)
    yield from _yield_disk_rows(environment)
    kernel = environment.get("kernel", {})
    yield "kernel", _join_known(kernel.get("release"), environment.get("distribution"))
    virtualization = environment.get("virtualization", {})
    if virtualization.get("hypervisor"):
        model = (virtualization.get("vendor"), virtualization.get("product"))
        yield "virtualization", _join_known("this host is itself a guest", *model)
    yield "mitigations", _describe_mitigations(environment.get("mitigations", {}))
    yield "versions", "; ".join(_describe_versions(environment.get("programs", {})))


def _yield_processor_rows(environment: Mapping[str, Any]) -> _Rows:
    processor = environment.get("processor", {})
    smt = {"1": "on", "0": "off"}.get(processor.get("smt", ""))
    yield (
        "processor",
        _join_known(
            processor.get("model"),
            _format_known_count(processor.get("count"), "processor"),
            _label_value("microcode", processor.get("microcode")),
            _label_value("SMT", smt),
        ),
    )
    frequency = environment.get("frequency", {})
    boost = {True: "on", False: "off"}.get(frequency.get("boost"))
    scaling = _join_known(
        _label_value("governor", frequency.get("governor")),
        _label_value("driver", frequency.get("driver")),
        _describe_range(frequency),
        _label_value("boost", boost),
    )
    if processor and not scaling:
        scaling = "scaling is not visible here"
    yield "frequency", scaling


def _yield_disk_rows(environment: Mapping[str, Any]) -> _Rows:
    for disk in environment.get("disks", ()):
        kind = {True: "rotational", False: "not rotational"}.get(disk.get("rotational"))
        scheduler = _label_value("scheduler", disk.get("scheduler"))
        size = _format_bytes(disk.get("bytes"))
        yield (
            f"disk {disk.get('name')}",
            _join_known(size, disk.get("model"), kind, scheduler, disk.get("write_cache")),
        )
    for directory, mount in environment.get("filesystems", {}).items():
        yield directory, f"{mount['type']} on {mount['device']} ({mount['options']})"


def _describe_versions(programs_seen: Mapping[str, object]) -> Iterable[str]:
    for name, version in programs_seen.items():
        # Many programs print their name before their version.
        named = name.partition("-")[0] in str(version).lower()
        yield str(version) if named else f"{name} {version}"


def _describe_mitigations(flaws: Mapping[str, str]) -> str:
    """Return the kernel's mitigation for each flaw of the processor, and the number of flaws that it does not have."""
    texts = [f"{name}: {state}" for name, state in flaws.items() if state != _NOT_AFFECTED]
    free = len(flaws) - len(texts)
    if free and texts:
        texts.append(f"{_format_known_count(free, 'other')}: not affected")
    elif free:
        texts.append("not affected by any flaw known to the kernel")
    return "; ".join(texts)


def _describe_binary(binary: Binary, *, whole: bool) -> str:
    if binary.is_same_everywhere:
        (digest,) = binary.distinct_digests
        shown = digest if whole else f"{digest[:_DIGEST_DIGITS]}…"
        sides = ", ".join(side for side in binary.digests if side != _HERE or "host" not in binary.digests)
        return f"{binary.path} is the same on {sides}: SHA-256 {shown} in {binary.trials} of {binary.trials} trials"
    digits = None if whole else _DIGEST_DIGITS
    differing = []
    for side, digests in binary.digests.items():
        shown = " and ".join(digest[:digits] for digest in digests)
        differing.append(f"{side} {shown}")
    return f"{binary.path} is NOT the same: SHA-256 {'; '.join(differing)}"


def _describe_flags(missing: tuple[str, ...], *, whole: bool) -> str:
    if not missing:
        return "no processor feature of the host"
    shown, more = missing, ""
    left = len(missing) - _FLAGS_SHOWN
    if left > 0 and not whole:
        shown, more = missing[:_FLAGS_SHOWN], f" … and {left} more"
    return f"{len(missing)} processor features of the host: {' '.join(shown)}{more}"


def _join_known(*parts: object) -> str:
    return ", ".join(str(part) for part in parts if part)


def _label_value(name: str, value: object) -> str:
    return f"{name} {value}" if value else ""


def _format_known_count(count: object, what: str) -> str:
    if count is None:
        return ""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _format_bytes(size: object) -> str:
    return f"{size / 1e9:.1f} GB" if isinstance(size, int | float) else ""


def _describe_range(frequency: Mapping[str, Any]) -> str:
    ends = [frequency.get("minimum_khz"), frequency.get("maximum_khz")]
    try:
        low, high = (int(str(end)) / 1e6 for end in ends)
    except ValueError:
        return ""
    return f"{low:.2f} to {high:.2f} GHz"
