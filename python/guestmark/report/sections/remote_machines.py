"""Other machines of a run, as their own agents saw them, with their round trips and clock rates."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from guestmark.core.machine_facts import (
    Connection,
    LibvirtMachine,
    OwnKernel,
    OwnMachine,
    RemoteMachine,
)
from guestmark.core.units import format_count
from guestmark.ledger.model import StoredRun
from guestmark.page.text import join_parts
from guestmark.stats.exec_cost import pool_exec_costs

# In seconds per second. A clock rate with a larger error is not shown.
_KNOWN_WITHIN = 500e-6
# Characters of a digest that tell two files apart.
_DIGEST = 12


def describe_machines(run: StoredRun) -> dict[str, str]:
    """Return a description of each machine, by platform; if it changed during the run, of each of its states."""
    machines: dict[str, list[RemoteMachine]] = {}
    for platform, machine in _yield_remote_machines(run):
        machines.setdefault(platform, []).append(machine)
    descriptions = {}
    for platform, seen in machines.items():
        kinds = "; then ".join(dict.fromkeys(map(_describe_remote_machine, seen)))
        freshness = _describe_freshness(dict.fromkeys(machine.fresh for machine in seen))
        distance = _describe_round_trip([machine.connection for machine in seen])
        descriptions[platform] = f"{kinds}, {freshness}{distance}{_describe_exec_cost(run, platform)}"
    return descriptions


def _describe_exec_cost(run: StoredRun, platform: str) -> str:
    """Return the cost of an empty command, pooled over the trials, if commands are timed from outside; else nothing."""
    cells = {cell.id for cell in run.plan.cells if str(cell.platform) == platform}
    cost = pool_exec_costs(trial for trial in run.trials if trial.cell_id in cells)
    if cost is None:
        return ""
    return f"; timed from outside: an empty command took {cost.describe()}, which was subtracted"


def find_mitigations(run: StoredRun) -> dict[str, dict[str, str]]:
    """Return each kernel's mitigations of processor flaws by platform, as of the last trial."""
    return {platform: machine.mitigations for platform, machine in _yield_remote_machines(run)}


def _yield_remote_machines(run: StoredRun) -> Iterator[tuple[str, RemoteMachine]]:
    platform_of = {cell.id: str(cell.platform) for cell in run.plan.cells}
    for trial in run.trials:
        machine = (
            trial.facts.find_fact(OwnMachine)
            or trial.facts.find_fact(LibvirtMachine)
            or trial.facts.find_fact(RemoteMachine)
        )
        if machine is not None:
            yield platform_of.get(trial.cell_id, trial.cell_id), machine


def _describe_remote_machine(machine: RemoteMachine) -> str:
    if isinstance(machine, OwnMachine):
        return _describe_own_machine(machine)
    parts = [
        machine.cpu,
        format_count(machine.processors, "processor"),
        f"{machine.memory_bytes / 1e9:.1f} GB",
        f"kernel {machine.kernel}",
        f"governor {machine.governor}" if machine.governor else "",
        _describe_hypervisor(machine),
        _describe_domain(machine) if isinstance(machine, LibvirtMachine) else "",
        "this host itself" if machine.is_this_host else "",
    ]
    return join_parts(parts)


def _describe_own_machine(machine: OwnMachine) -> str:
    """Describe one of the user's own machines as seen from inside: its resources, and whose kernel it runs on."""
    inside = machine.inside
    processors = f"{inside.processors:g} processors"
    if inside.processors.is_integer():
        processors = format_count(int(inside.processors), "processor")
    kernel, hypervisor = inside.kernel_is.value, ""
    if inside.kernel_is is OwnKernel.OWN:
        kernel, hypervisor = f"its own, {machine.kernel}", _describe_hypervisor(machine)
    parts = [
        machine.cpu,
        processors,
        f"{inside.memory_bytes / 1e9:.1f} GB",
        f"kernel: {kernel}",
        hypervisor,
        f"root on {inside.root_filesystem}" if inside.root_filesystem else "",
        inside.distribution,
        f"of the saved machine {machine.restored.describe()}" if machine.restored is not None else "",
        machine.version,
        # If the file changes between two trials, they ran on different machines.
        f"file {machine.digest[:_DIGEST]}",
    ]
    return join_parts(parts)


def _describe_freshness(ways: Collection[str]) -> str:
    """Return what made the machine fresh before its trials.

    The first trial has no predecessor, so its text may be a part of a later one; such a part is left out.
    """
    texts = []
    for way in ways:
        if way and any(way in other and other != way for other in ways):
            continue
        texts.append(f"fresh by {way}" if way else "not made fresh before its trials")
    return ", or ".join(texts)


def _describe_hypervisor(machine: RemoteMachine) -> str:
    model = join_parts([machine.vendor, machine.product], " ")
    detail = f" ({model})" if model else ""
    if machine.hypervisor in {"", "none"}:
        return f"no hypervisor detected{detail}"
    return f"under {machine.hypervisor}{detail}"


def _describe_domain(machine: LibvirtMachine) -> str:
    domain = machine.libvirt
    disks = [f"{disk.name} {disk.format} cache={disk.cache}" for disk in domain.disks]
    parts = [domain.accelerator, domain.machine, domain.cpu, domain.hypervisor, domain.version, *disks]
    return f"domain {domain.domain} ({join_parts(parts)})"


def _describe_round_trip(connections: Sequence[Connection]) -> str:
    """Return the typical round trip, and the clock's rate where the trials were long enough to tell it."""
    round_trips = sorted(connection.round_trip_ns for connection in connections)
    middle = round_trips[len(round_trips) // 2]
    text = f"; round trip {middle / 1e6:.3g} ms"
    drifts = []
    for connection in connections:
        if connection.clock_drift is not None and connection.clock_drift_error is not None:
            drifts.append((connection.clock_drift_error, connection.clock_drift))
    if drifts:
        error, drift = min(drifts, key=lambda pair: pair[0])
        if error < _KNOWN_WITHIN:
            text += f", its clock {drift * 1e6:+.0f} ± {error * 1e6:.0f} ppm"
    return text
