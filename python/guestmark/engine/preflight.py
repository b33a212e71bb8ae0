"""The examination before anything is measured: which cells can run here, what is left out and why, and remarks.

Boot files of machines of other architectures are built first.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

from guestmark.appliance.bzimage import NotABzImageError, read_release
from guestmark.core.architectures import Architecture
from guestmark.core.errors import GuestmarkError, PlatformUnusableError, UsageError
from guestmark.core.model import Cell, LeftOut, Plan, select_runnable
from guestmark.core.platform_spec import PlatformSpec, parse_platform
from guestmark.core.units import format_duration, format_size
from guestmark.core.workload_kind import find_packages, index_workload_kinds, workload_kind
from guestmark.disks import preflight as disks
from guestmark.disks.location import add_locations
from guestmark.foreign.parts import SILENT
from guestmark.foreign.progress import Progress
from guestmark.ledger.validation import LONGEST_S, MOST_BLOCKS, find_policy_problems
from guestmark.platforms import affinity, registry
from guestmark.platforms.base import Platform, Unusable, Usable
from guestmark.platforms.probe import PlatformVariant, Startable, list_deciding_factors, recall_findings
from guestmark.setting.machine import IMAGE, KERNEL, MACHINE, MEMORY
from guestmark.setting.memory import check_memory
from guestmark.setting.network import MTU, NETWORK, NIC, NIC_QUEUES, NIC_RING, OFFLOADS, PEER_ADDRESS, Network
from guestmark.workloads import base as workloads

if TYPE_CHECKING:
    from guestmark.platforms.qemu.nested.platform import NestedPlatform


def build_boot_files(cells: Iterable[Cell], progress: Progress = SILENT) -> tuple[LeftOut, ...]:
    """Build the boot files of machines of other architectures; return the cells for which that is not possible.

    Raises `UsageError` for a platform that this version does not have.
    """
    groups: dict[str, dict[tuple[str, ...], list[Cell]]] = {}
    for cell in cells:
        # An image brings all but the agent, which is built where the image is prepared.
        if cell.platform.foreign_architecture and cell.null_of is None and IMAGE not in cell.levels:
            groups.setdefault(str(cell.platform), {}).setdefault(find_packages(cell), []).append(cell)
    found: list[LeftOut] = []
    for name, by_packages in groups.items():
        found += _build_boot_files_for_platform(name, by_packages, progress)
    return tuple(found)


def _leave_out(cell: Cell, reason: str, hint: str = "") -> LeftOut:
    return LeftOut(str(cell.platform), reason, hint, cell=cell.id)


def _build_boot_files_for_platform(
    name: str, cells: Mapping[tuple[str, ...], list[Cell]], progress: Progress
) -> Iterable[LeftOut]:
    """Return one entry for the platform if all its cells fail for one reason, else one for each cell that fails."""
    found: list[LeftOut] = []
    for packages, theirs in cells.items():
        try:
            make_boot_files(parse_platform(name), packages, progress)
        except UsageError:
            # A name that no platform has is a mistake in the plan, not a reason to leave cells out.
            raise
        except GuestmarkError as error:
            found += [LeftOut(name, error.message, error.hint, cell=cell.id) for cell in theirs]
    alike = len({(entry.reason, entry.hint) for entry in found}) == 1
    if alike and len(found) == sum(map(len, cells.values())):
        return [replace(found[0], cell="")]
    return found


def make_boot_files(spec: PlatformSpec, packages: Sequence[str], progress: Progress) -> None:
    """Build the boot files of a foreign platform's machines. Raises `GuestmarkError`."""
    cast("NeedsBootFiles", registry.get_platform(spec)).make_parts(packages, progress)


class NeedsBootFiles(Protocol):
    """A platform of another architecture, whose boot files guestmark builds."""

    def make_parts(self, packages: Sequence[str], progress: Progress) -> None:
        """Build the boot files of its machines. Raises `GuestmarkError`."""


def find_misplaced_cells(cells: Iterable[Cell]) -> tuple[LeftOut, ...]:
    """Return cells that need programs on a machine without any, or the agent where only programs are emulated."""
    found = []
    for cell in cells:
        architecture = cell.platform.foreign_architecture
        if cell.null_of is None and architecture:
            for reason, hint in _explain_misplaced(cell, architecture):
                found.append(_leave_out(cell, reason, hint))
    return tuple(found)


def _explain_misplaced(cell: Cell, row: Architecture) -> Iterator[tuple[str, str]]:
    kind = workload_kind(cell.workload.name)
    if (
        not row.several_processors
        and cell.platform.count_processors(cell.levels) > 1
        and cell.platform.is_guest
    ):
        yield f"{row.name} machines have only one processor", "use one: --set smp=1"
    elif kind.runs_programs(cell.workload) and not row.root and IMAGE not in cell.levels:
        able = sorted(name for name, other in index_workload_kinds().items() if other.agent_is_enough)
        yield (
            f"no release of Debian has packages for {row.name}, so there are no programs to run",
            f"its agent alone can run: boot, {', '.join(able)}",
        )
    elif not kind.runs_programs(cell.workload) and cell.platform.inner.description.only_programs:
        yield (
            f"{kind.name} runs in guestmark's agent, which is not emulated there",
            f"measure it on host, or on tcg@{row.name}",
        )


_ABOUT_NETWORKS = (NIC, MTU, OFFLOADS, NIC_QUEUES, NIC_RING, PEER_ADDRESS)
# A hypervisor takes at least this much besides its guest's memory.
HYPERVISOR_BYTES = 64 << 20

Probe = Callable[[list[Platform]], Mapping[str, Usable | Unusable]]


@dataclass(frozen=True, slots=True)
class Readiness:
    """The result of an examination: a `plan` with usable baselines, and the `cells` of it that will run.

    `left_out` is what cannot be measured here; `notes` are remarks for the user.
    """

    plan: Plan
    cells: tuple[Cell, ...]
    left_out: tuple[LeftOut, ...] = ()
    notes: tuple[str, ...] = ()


def examine(plan: Plan, probe: Probe, progress: Progress = SILENT) -> Readiness:
    """Examine a new plan. `probe` gets the platforms of all guests and other machines at once; it answers by name.

    Boot files of machines of other architectures are built first; `progress` shows that.

    A baseline that cannot be used is replaced by the first cell that can, with a null copy if the old one had one.
    Raises `UsageError` for a platform that this version does not have and for requests that can never be met,
    `PlatformUnusableError` if nothing is left, or what a workload's own check raised.
    """
    plan = choose_locations(plan)
    left_out = _find_refused_cells(plan.cells)
    left_out += build_boot_files(select_runnable(plan.cells, left_out), progress)
    left_out += find_unusable_platforms(select_runnable(plan.cells, left_out), probe)
    left_out += find_impossible_cells(select_runnable(plan.cells, left_out))
    plan, notes = replace_unusable_baselines(plan, left_out)
    cells = select_runnable(plan.cells, left_out)
    return Readiness(plan, cells, left_out, (*notes, *check_workloads(plan, cells)))


def examine_without_starting(plan: Plan) -> Readiness:
    """Return what `examine` would, as far as known without starting or building anything; raise the same errors."""
    plan = choose_locations(plan)
    left_out = _find_refused_cells(plan.cells)
    left_out += find_unusable_platforms(
        select_runnable(plan.cells, left_out),
        lambda platforms: recall_findings(cast("list[Startable]", platforms)),
    )
    left_out += find_impossible_cells(select_runnable(plan.cells, left_out))
    plan, notes = replace_unusable_baselines(plan, left_out)
    return Readiness(plan, select_runnable(plan.cells, left_out), left_out, tuple(notes))


def _find_refused_cells(cells: Sequence[Cell]) -> tuple[LeftOut, ...]:
    """Return the cells that this host, or their platform, does not support as requested."""
    return (
        *find_cells_larger_than_host(cells),
        *find_cells_without_memory(cells),
        *disks.leave_out_diskless(cells),
        *_find_cells_with_unsupported_levels(cells),
        *find_misplaced_cells(cells),
    )


def _find_cells_with_unsupported_levels(cells: Iterable[Cell]) -> tuple[LeftOut, ...]:
    """Return the cells with levels that their platform's destination does not have, such as a restored start."""
    found = []
    for cell in cells:
        if cell.null_of is None and (reason := cell.platform.explain_objection(cell.levels)):
            found.append(LeftOut(str(cell.platform), reason, cell=cell.id))
    return tuple(found)


def find_cells_without_memory(cells: Iterable[Cell]) -> tuple[LeftOut, ...]:
    """Return the cells whose guests need memory that this host does not have, such as huge pages."""
    found = []
    for cell in cells:
        spec, machine = cell.platform, cell.levels.get(MACHINE) or ""
        if cell.null_of is None and spec.is_guest and not spec.is_elsewhere:
            levels = cell.levels.with_defaults({MEMORY.name: spec.inner.architecture.memory})
            try:
                check_memory(levels, here=not spec.is_nested, on_pci=not machine.startswith("microvm"))
            except PlatformUnusableError as error:
                found.append(LeftOut(str(cell.platform), error.message, error.hint, cell=cell.id))
    return tuple(found)


def choose_locations(plan: Plan) -> Plan:
    """Return the plan with a location for every disk; its context lists the cells that got the default."""
    cells = tuple(add_locations(plan.cells))
    chosen = tuple(new.id for old, new in zip(plan.cells, cells, strict=True) if new.factors != old.factors)
    return replace(plan, cells=cells, context=replace(plan.context, default_locations=chosen))


def examine_again(plan: Plan, known: Sequence[LeftOut], probe: Probe) -> Readiness:
    """Examine a stored plan that is resumed; `known` is what was left out when it began, and stays left out.

    Raises `PlatformUnusableError` for a baseline that can no longer be used: it cannot be replaced midway.
    """
    cells = select_runnable(plan.cells, known)
    check_requests(plan, cells)
    left_out = find_cells_larger_than_host(cells)
    left_out += find_unusable_platforms(select_runnable(cells, left_out), probe)
    for entry in left_out:
        for cell in cells:
            if cell.baseline and entry.covers(cell):
                raise PlatformUnusableError(
                    f"the baseline {cell.id} cannot be used now: {entry.reason}", hint=entry.hint
                )
    cells = select_runnable(cells, left_out)
    return Readiness(plan, cells, left_out, tuple(check_workloads(plan, cells)))


def check_requests(plan: Plan, cells: Sequence[Cell]) -> None:
    """Check the policy and every workload's requests. Raises `UsageError` for what can never be met."""
    if (problem := next(find_policy_problems(plan.policy), None)) is not None:
        raise UsageError(
            f"{problem}, which is beyond what a run can have",
            hint=f"counts go up to {MOST_BLOCKS:,}, and times up to {format_duration(LONGEST_S)}",
        )
    for name, theirs in _group_by_workload(cells).items():
        workloads.find_trial_class(name).check_request(plan, theirs)
    disks.check_filesystems(cells)
    check_kernels(cells)
    affinity.check_processor_lists(cells)


def check_kernels(cells: Iterable[Cell]) -> None:
    """Check that every file given as a kernel is a kernel. Raises `UsageError`."""
    for cell in cells:
        # A kernel for another machine or architecture lies elsewhere, or has another format.
        path = cell.levels.get(KERNEL) if cell.platform.shares_root else None
        if not path:
            continue
        try:
            read_release(Path(path))
        except NotABzImageError as error:
            raise UsageError(error.message, hint=error.hint) from error
        except OSError as error:
            raise UsageError(
                f"the kernel {path} cannot be read: {error.strerror or error}",
                hint=f"copy it as root to a place where you may read it, or sudo chmod +r {path}",
            ) from error


def find_cells_larger_than_host(cells: Iterable[Cell]) -> tuple[LeftOut, ...]:
    """Return the cells whose guest has more memory than this host, without starting anything.

    Nested cells are examined with their platform, which knows what the outer guests need.
    """
    total = read_host_memory()
    found = []
    for cell in cells:
        memory = cell.levels.get(MEMORY)
        here = cell.platform.is_guest and not cell.platform.is_nested and not cell.platform.is_elsewhere
        if memory is None or not here or cell.null_of is not None:
            continue
        if memory + HYPERVISOR_BYTES > total:
            reason = (
                f"it needs {format_size(memory)} of memory and {format_size(HYPERVISOR_BYTES)} for its hypervisor, "
                f"but this host has {total / 2**30:.1f}G in total"
            )
            found.append(_leave_out(cell, reason, "use less: --set memory=512M"))
    return tuple(found)


def read_host_memory() -> int:
    """Return the total bytes of this host's memory."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def find_unusable_platforms(cells: Sequence[Cell], probe: Probe) -> tuple[LeftOut, ...]:
    """Return the platforms that cannot be used here. Raises `UsageError` for one that this version does not have."""
    found: dict[str, Usable | Unusable] = {}
    waiting: list[Platform] = []
    # A platform is probed once for each combination of levels that decides whether it works.
    with_levels: dict[str, list[Cell]] = {}
    for spec, mine in _group_by_platform(cells).items():
        try:
            platform = registry.get_platform(spec)
            _require_nested_memory(spec, mine)
        except PlatformUnusableError as error:
            found[str(spec)] = Unusable.from_error(error)
            continue
        # The host needs no guest to boot, so there is nothing to wait for.
        if spec.is_this_host:
            found[str(spec)] = platform.probe()
            continue
        # The first trial shows as much, and another start would take a minute or more.
        if spec.translates_twice:
            missing = cast("NestedPlatform", platform).find_missing(mine[0].levels)
            found[str(spec)] = missing or recall_findings([cast("Startable", platform)])[platform.name]
            continue
        for levels, theirs in _group_by_probed_levels(mine).items():
            tried = platform
            if levels:
                tried = PlatformVariant(cast("Startable", platform), dict(levels))
                with_levels[tried.name] = theirs
            waiting.append(tried)
    # All at once, as each boots a guest.
    if waiting:
        found |= probe(waiting)
    left_out: list[LeftOut] = []
    for name, result in found.items():
        if isinstance(result, Unusable):
            left_out += _make_left_out(name, result, with_levels.get(name))
    return tuple(left_out)


def _make_left_out(name: str, found: Unusable, cells: Sequence[Cell] | None) -> Iterable[LeftOut]:
    """Return an entry for the platform, or for each of its cells with the levels that do not work."""
    if cells is None:
        return [LeftOut(name, found.reason, found.hint)]
    return [_leave_out(cell, found.reason, found.hint) for cell in cells]


def _group_by_probed_levels(cells: Iterable[Cell]) -> dict[tuple[tuple[str, str], ...], list[Cell]]:
    """Group the cells by the levels that decide whether their platform works (`probe.list_deciding_factors`)."""
    found: dict[tuple[tuple[str, str], ...], list[Cell]] = {}
    for cell in cells:
        levels = tuple((name, cell.factors[name]) for name in list_deciding_factors(cell))
        found.setdefault(levels, []).append(cell)
    return found


def _group_by_platform(cells: Iterable[Cell]) -> dict[PlatformSpec, list[Cell]]:
    found: dict[PlatformSpec, list[Cell]] = {}
    for cell in cells:
        found.setdefault(cell.platform, []).append(cell)
    return found


def _require_nested_memory(spec: PlatformSpec, cells: Sequence[Cell]) -> None:
    """Raise `PlatformUnusableError` if this host has too little memory for nested guests."""
    if not spec.is_nested or spec.is_elsewhere:
        return
    # Most runs have no nested guest and need not import that platform.
    from guestmark.platforms.qemu.nested.outer import find_shortage

    if (shortage := find_shortage(cells)) is not None:
        raise shortage


def find_impossible_cells(cells: Iterable[Cell]) -> tuple[LeftOut, ...]:
    """Return cells whose workload or disks can never work on this host."""
    found = []
    for cell in cells:
        if cell.null_of is not None:
            continue
        reason = workloads.find_trial_class(cell.workload.name).impossible(cell)
        reason = reason or disks.explain_impossible_disk(cell)
        if reason:
            found.append(_leave_out(cell, reason))
    return tuple(found)


def require_most_platforms(plan: Plan, left_out: Sequence[LeftOut]) -> None:
    """Raise `PlatformUnusableError` if more than half of the plan's platforms have no cell that can be measured."""
    wanted = dict.fromkeys(str(cell.platform) for cell in plan.cells)
    usable = {str(cell.platform) for cell in select_runnable(plan.cells, left_out)}
    missing = [name for name in wanted if name not in usable]
    if 2 * len(missing) <= len(wanted):
        return
    why = {entry.name: entry for entry in left_out if entry.name in missing}
    reasons = _join_reasons(why[name] for name in missing if name in why)
    others = ", ".join(name for name in wanted if name in usable)
    raise PlatformUnusableError(
        f"{len(missing)} of {len(wanted)} platforms cannot be used here, so nothing was measured: {reasons}",
        hint="; ".join((f"--partial measures {others} nevertheless", *_list_hints(why.values()))),
    )


def _join_reasons(left_out: Iterable[LeftOut]) -> str:
    return "; ".join(f"{entry.name}: {entry.reason}" for entry in left_out)


def _list_hints(left_out: Iterable[LeftOut]) -> list[str]:
    """Return what would help, each hint once."""
    return list(dict.fromkeys(entry.hint for entry in left_out if entry.hint))


def replace_unusable_baselines(plan: Plan, left_out: Sequence[LeftOut]) -> tuple[Plan, list[str]]:
    """Return the plan with usable baselines and without copies of cells that are left out, and remarks.

    Raises `PlatformUnusableError` with all reasons if nothing can be measured.
    """
    usable = select_runnable(plan.cells, left_out)
    if not usable:
        raise PlatformUnusableError(
            f"nothing can be measured here: {_join_reasons(left_out)}", hint="; ".join(_list_hints(left_out))
        )
    notes: list[str] = []
    cells = [cell for cell in plan.cells if cell.null_of is None or cell in usable]
    for old in list(cells):
        if not old.baseline or old in usable:
            continue
        new = _find_other_baseline(old, usable)
        if new is not None:
            notes.append(
                f"the baseline {old.id} cannot be used; everything is compared with {new.id} instead"
            )
            cells = _move_baseline(plan, cells, old, new)
    return replace(plan, cells=tuple(cells)), notes


def _find_other_baseline(old: Cell, usable: Iterable[Cell]) -> Cell | None:
    """Return the first usable cell that `old` would have been compared with."""
    for cell in usable:
        if cell.null_of is None and cell.compares_with(old):
            return cell
    return None


def _move_baseline(plan: Plan, cells: Iterable[Cell], old: Cell, new: Cell) -> list[Cell]:
    """Return the cells with `new` as the baseline instead of `old`, with a null copy if `old` had one."""
    moved = []
    for cell in cells:
        if cell.id in {old.id, new.id}:
            moved.append(replace(cell, baseline=cell.id == new.id))
        else:
            moved.append(cell)
    copied = {cell.null_of for cell in plan.cells}
    if old.id in copied and new.id not in copied:
        moved.append(replace(new, id=f"{new.id}#2", baseline=False, null_of=new.id, added=True))
    return moved


def check_workloads(plan: Plan, cells: Sequence[Cell]) -> list[str]:
    """Check that disks can be created, and let every workload check its cells; return the workloads' remarks.

    Raises what one of them raised, or one error that lists what several raised.
    """
    remarks: list[str] = []
    errors: list[GuestmarkError] = []
    # Every check runs, so that the user learns of all problems at once.
    for check in (_check_disk_space, _check_network_levels):
        try:
            check(cells)
        except GuestmarkError as error:
            errors.append(error)
    for name, theirs in _group_by_workload(cells).items():
        try:
            remarks += workloads.find_trial_class(name).preflight(plan, theirs)
        except GuestmarkError as error:
            errors.append(error)
    if errors:
        raise _merge_errors(errors)
    return list(dict.fromkeys(remarks))


def _group_by_workload(cells: Iterable[Cell]) -> dict[str, list[Cell]]:
    by_workload: dict[str, list[Cell]] = {}
    for cell in cells:
        by_workload.setdefault(cell.workload.name, []).append(cell)
    return by_workload


def _merge_errors(errors: Sequence[GuestmarkError]) -> GuestmarkError:
    """Return the only error, or one that lists all of them: a `UsageError` if one of them is."""
    if len(errors) == 1:
        return errors[0]
    kind: type[GuestmarkError] = GuestmarkError
    lines = []
    for error in errors:
        line = error.message
        if error.hint:
            line += f" ({error.hint})"
        lines.append(line)
        if isinstance(error, UsageError):
            kind = UsageError
    return kind(f"the plan cannot be measured here for {len(errors)} reasons", hint="\n".join(lines))


def _check_network_levels(cells: Sequence[Cell]) -> None:
    """Raise `UsageError` for a level that applies to a network if the machine has none."""
    for cell in cells:
        named = [factor.name for factor in _ABOUT_NETWORKS if factor.name in cell.factors]
        if not named or cell.levels.get(NETWORK) not in (None, Network.NONE):
            continue
        # A workload with its own network decides what these factors mean.
        if NETWORK not in workload_kind(cell.workload.name).factors:
            raise UsageError(
                f"{cell.id}: {named[0]} applies to a network, but this machine has none",
                hint="add one: --set network=tap for guests, veth for sandboxes and the host, existing for others",
            )


def _check_disk_space(cells: Sequence[Cell]) -> None:
    disks.check_disks([cell for cell in cells if not cell.platform.is_nested or cell.platform.is_elsewhere])
    for cell in cells:
        if cell.platform.is_nested and not cell.platform.is_elsewhere:
            from guestmark.platforms.qemu.nested import images

            images.check_disks(cell)
