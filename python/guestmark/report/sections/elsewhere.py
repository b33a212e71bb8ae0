"""Other machines of a run, as their own agents saw them: what they are, and how far away their clocks are."""

from __future__ import annotations

from collections.abc import Iterable

from guestmark.core.machine_facts import LibvirtMachine, RemoteMachine
from guestmark.core.units import counted
from guestmark.ledger.model import StoredRun

_SOFT = 500e-6


def machines(run: StoredRun) -> dict[str, str]:
    """What is known of each, by platform; of one that changed during the run, everything it was."""
    platform_of = {cell.id: str(cell.platform) for cell in run.plan.cells}
    found: dict[str, dict[str, None]] = {}
    freshness: dict[str, dict[str, None]] = {}
    round_trips: dict[str, list[int]] = {}
    drifts: dict[str, list[tuple[float, float]]] = {}
    for trial in run.trials:
        machine = trial.facts.of(LibvirtMachine) or trial.facts.of(RemoteMachine)
        if machine is None:
            continue
        platform = platform_of.get(trial.cell_id, trial.cell_id)
        found.setdefault(platform, {})[_described(machine)] = None
        freshness.setdefault(platform, {})[machine.fresh] = None
        connection = machine.connection
        round_trips.setdefault(platform, []).append(connection.round_trip_ns)
        if connection.clock_drift is not None and connection.clock_drift_error is not None:
            drifts.setdefault(platform, []).append((connection.clock_drift, connection.clock_drift_error))
    return {
        platform: f"{'; then '.join(said)}, {_made_fresh(freshness[platform])}"
        + _way(round_trips[platform], drifts.get(platform, []))
        for platform, said in found.items()
    }


def mitigations(run: StoredRun) -> dict[str, dict[str, str]]:
    """What the kernel of each does about flaws of its processor, by platform; of the last trial that knows."""
    platform_of = {cell.id: str(cell.platform) for cell in run.plan.cells}
    return {
        platform_of.get(trial.cell_id, trial.cell_id): machine.mitigations
        for trial in run.trials
        if (machine := trial.facts.of(LibvirtMachine) or trial.facts.of(RemoteMachine)) is not None
    }


def _described(machine: RemoteMachine) -> str:
    parts = [
        machine.cpu,
        counted(machine.processors, "processor"),
        f"{machine.memory_bytes / 1e9:.1f} GB",
        f"kernel {machine.kernel}",
        f"governor {machine.governor}" if machine.governor else "",
        _under(machine),
        _managed(machine) if isinstance(machine, LibvirtMachine) else "",
        "this very host" if machine.is_this_host else "",
    ]
    return ", ".join(part for part in parts if part)


def _made_fresh(said: Iterable[str]) -> str:
    """What made it fresh. What is said of the first trial, before which there was none, may be part of the others'."""
    told = [text for text in said if not any(text and text in other for other in said if other != text)]
    return ", or ".join(
        f"fresh by {text}" if text else "nothing was done before its trials to make it fresh" for text in told
    )


def _under(machine: RemoteMachine) -> str:
    model = " ".join(part for part in (machine.vendor, machine.product) if part)
    if machine.hypervisor in ("", "none"):
        return f"no hypervisor seen{f' ({model})' if model else ''}"
    return f"under {machine.hypervisor}{f' ({model})' if model else ''}"


def _managed(machine: LibvirtMachine) -> str:
    found = machine.libvirt
    disks = [f"{disk.name} {disk.format} cache={disk.cache}" for disk in found.disks]
    parts = [found.accelerator, found.machine, found.cpu, found.hypervisor, found.version, *disks]
    return f"domain {found.domain} ({', '.join(part for part in parts if part)})"


def _way(round_trips: list[int], drifts: list[tuple[float, float]]) -> str:
    """The typical round trip, and the clock's rate where the trials were long enough to tell it."""
    middle = sorted(round_trips)[len(round_trips) // 2]
    said = f"; {middle / 1e6:.3g} ms to it and back"
    known = [drift for drift in drifts if drift[1] < _SOFT]
    if known:
        drift, error = min(known, key=lambda each: each[1])
        said += f", its clock {drift * 1e6:+.0f} ± {error * 1e6:.0f} ppm"
    return said
