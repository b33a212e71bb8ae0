"""Before anything is measured: which platforms can be used here, and what the plan becomes without the rest."""

import os
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from guestmark.appliance.bzimage import NotABzImageError, release_of
from guestmark.disks import preflight as disks
from guestmark.errors import GuestmarkError, PlatformUnusableError, UsageError
from guestmark.plan.model import Cell, Plan
from guestmark.plan.platform_spec import parse_platform
from guestmark.plan.units import format_size, parse_size
from guestmark.platforms import registry
from guestmark.platforms.base import Unusable, Usable
from guestmark.workloads import base as workloads

if TYPE_CHECKING:
    from guestmark.platforms.base import Platform

HYPERVISOR_BYTES = 64 << 20  # what a hypervisor takes at least besides its guest's memory


def check_requests(plan: Plan) -> None:
    """Lets every workload refuse what can never be measured as it was asked for. Raises `UsageError`."""
    by_name: dict[str, list[Cell]] = {}
    for cell in plan.cells:
        by_name.setdefault(cell.workload.name, []).append(cell)
    for name, cells in by_name.items():
        workloads.check_request(name, plan, cells)
    check_kernels(plan.cells)


def check_kernels(cells: Iterable[Cell]) -> None:
    """Raises `UsageError` for a file that was given as kernel and is none."""
    for cell in cells:
        layers = parse_platform(cell.platform).layers
        if any(layer.arch is not None or layer.kind == "ssh" for layer in layers):
            continue  # what another machine or processor starts is not ours to read
        if path := cell.factors.get("kernel"):
            try:
                release_of(Path(path))
            except NotABzImageError as error:
                raise UsageError(error.message, hint=error.hint) from error
            except OSError as error:
                raise UsageError(
                    f"the kernel {path} cannot be read: {error.strerror or error}",
                    hint=f"copy it as root to where you may read it, or sudo chmod +r {path}",
                ) from error


def check_platforms(
    plan: Plan, probe_all: Callable[[list["Platform"]], Mapping[str, Usable | Unusable]]
) -> dict[str, Unusable]:
    """The unusable platforms of the plan, by name, and the cells, by id, that are larger than this host.

    Raises `UsageError` for a platform that this version cannot make.
    `probe_all` is given all guests' platforms at once and answers by name; the host is asked directly.
    """
    found: dict[str, Usable | Unusable] = {}
    guests: list[Platform] = []
    oversized = larger_than_host(plan.cells)
    fitting = [cell for cell in plan.cells if cell.named_in(oversized) is None]
    for name in dict.fromkeys(cell.platform for cell in fitting):
        try:
            platform = registry.get(name)
        except PlatformUnusableError as error:
            found[name] = Unusable(error.message, error.hint)
            continue
        if name == "host":
            found[name] = platform.probe()
        else:
            guests.append(platform)
    found |= oversized | too_large(plan)
    guests = [platform for platform in guests if platform.name not in found]
    if guests:
        found |= probe_all(guests)
    return {name: result for name, result in found.items() if isinstance(result, Unusable)}


def larger_than_host(cells: Iterable[Cell]) -> dict[str, Unusable]:
    """The cells whose guest has more memory than this host, by id; computed, nothing is started.

    Nested cells are left to `too_large`, which knows what their outer guests take.
    """
    total = host_memory()
    found = {}
    for cell in cells:
        memory = cell.factors.get("memory")
        layers = parse_platform(cell.platform).layers
        if memory is None or len(layers) > 1 or layers[0].kind == "ssh" or cell.null_of is not None:
            continue
        if parse_size(memory) + HYPERVISOR_BYTES > total:
            found[cell.id] = Unusable(
                f"it needs {memory} of memory and {format_size(HYPERVISOR_BYTES)} for its hypervisor, "
                f"this host has {total / 2**30:.1f}G in all",
                "give it less: --set memory=512M",
            )
    return found


def host_memory() -> int:
    """Bytes of memory that this host has in all."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def too_large(plan: Plan) -> dict[str, Unusable]:
    """Nested platforms that this host has too little memory for, by name; computed, nothing is started."""
    by_name: dict[str, list[Cell]] = {}
    for cell in plan.cells:
        if "/" in cell.platform:
            by_name.setdefault(cell.platform, []).append(cell)
    if not by_name:
        return {}
    from guestmark.platforms.nested_outer import shortage

    short = {name: shortage(cells) for name, cells in by_name.items()}
    return {name: Unusable(error.message, error.hint) for name, error in short.items() if error is not None}


def check_nested(cells: Iterable[Cell]) -> None:
    """Checks that the disks of nested cells can be made. Raises `UsageError`, `PlatformUnusableError`."""
    for cell in cells:
        from guestmark.platforms import nested_images

        nested_images.check(cell)


def check_workloads(plan: Plan, unusable: Collection[str] = ()) -> list[str]:
    """Checks that the disks can be made, lets every workload check its cells, and returns the workloads' remarks.

    Raises what one of them raised; when several did, one error that says it all.
    """
    by_name: dict[str, list[Cell]] = {}
    for cell in plan.cells:
        if cell.named_in(unusable) is None:
            by_name.setdefault(cell.workload.name, []).append(cell)
    remarks: list[str] = []
    errors: list[GuestmarkError] = []
    everything = [cell for cells in by_name.values() for cell in cells]
    try:
        disks.check([cell for cell in everything if "/" not in cell.platform])
        check_nested([cell for cell in everything if "/" in cell.platform])
    except GuestmarkError as error:
        errors.append(error)
    for name, cells in by_name.items():
        try:
            remarks += workloads.preflight(name, plan, cells)
        except GuestmarkError as error:
            errors.append(error)
    if len(errors) == 1:
        raise errors[0]
    if errors:
        kind = UsageError if any(isinstance(error, UsageError) for error in errors) else GuestmarkError
        told = [f"{error.message}{f' ({error.hint})' if error.hint else ''}" for error in errors]
        raise kind(f"the plan cannot be measured here, for {len(errors)} reasons", hint="\n".join(told))
    return list(dict.fromkeys(remarks))


def impossible(plan: Plan, unusable: Collection[str] = ()) -> dict[str, Unusable]:
    """The cells, by id, that can never be filled on this host, for what their workload or their disks need, although
    their platform can be used.
    """
    return {
        cell.id: Unusable(reason)
        for cell in plan.cells
        if cell.named_in(unusable) is None
        and (reason := workloads.impossible(cell) or disks.impossible(cell))
    }


def without(plan: Plan, unusable: Mapping[str, Unusable]) -> tuple[Plan, list[str]]:
    """The plan with baselines that can be used, and remarks about what changed; `unusable` names platforms and cells.

    When a baseline is unusable the first usable cell takes its place, and has a null copy if the old one had. Raises
    `PlatformUnusableError` with all reasons when nothing is left.
    """
    usable = [cell for cell in plan.cells if cell.named_in(unusable) is None]
    if not usable:
        reasons = "; ".join(f"{name}: {result.reason}" for name, result in unusable.items())
        hints = "; ".join(dict.fromkeys(result.hint for result in unusable.values() if result.hint))
        raise PlatformUnusableError(f"nothing can be measured here: {reasons}", hint=hints)
    notes: list[str] = []
    # A copy of a cell that cannot be measured shows nothing.
    cells = [cell for cell in plan.cells if cell.null_of is None or cell.named_in(unusable) is None]
    for old in [cell for cell in plan.cells if cell.baseline and cell.named_in(unusable) is not None]:
        new = next((cell for cell in usable if cell.null_of is None and cell.compares_with(old)), None)
        if new is None:
            continue
        notes.append(f"the baseline {old.id} cannot be used; everything is compared with {new.id} instead")
        cells = [
            replace(cell, baseline=cell.id == new.id) if cell.id in {old.id, new.id} else cell
            for cell in cells
        ]
        has_null = any(cell.null_of == old.id for cell in plan.cells)
        if has_null and not any(cell.null_of == new.id for cell in plan.cells):
            cells.append(replace(new, id=f"{new.id}#2", baseline=False, null_of=new.id, added=True))
    return replace(plan, cells=tuple(cells)), notes
