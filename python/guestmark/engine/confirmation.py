"""A plan that measures two runs again, side by side in every block, as far as both can still be reproduced.

A side is what its trials attest: the program by its digest, the guest's kernel by its release, QEMU by its version.
A file that no longer exists is never replaced by another of the same name.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from guestmark.appliance.bzimage import read_release
from guestmark.appliance.kernel import find_image_by_release
from guestmark.core.architectures import find_host_architecture
from guestmark.core.context import Caller, Context
from guestmark.core.errors import GuestmarkError, UsageError
from guestmark.core.findings import Program
from guestmark.core.machine_facts import GuestMachine
from guestmark.core.model import Cell, Plan, Trial, TrialStatus
from guestmark.core.registry import is_variable
from guestmark.core.workload_kind import workload_kind
from guestmark.ledger.environment_variables import restore_values
from guestmark.ledger.model import StoredRun
from guestmark.plan.policy_options import select_given_values
from guestmark.platforms.probe import FILE_FACTORS
from guestmark.setting.machine import KERNEL, PROGRAM
from guestmark.stats.conditions.surroundings import compare_environments
from guestmark.workloads.common.program import compute_sha256

SIDES = ("before", "after")
_DEBIAN = re.compile(r"\((?:Debian|Ubuntu) ([^)]+)\)")
_VERSION_S = 20.0


@dataclass(frozen=True, slots=True)
class Confirmation:
    """A plan that measures both sides; the differences that it compares, and those that it cannot show."""

    plan: Plan
    differing: tuple[str, ...]
    missing: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _ComparedSide:
    """A cell of one run: its levels, program and machines (`used`), and where programs were found (`paths`)."""

    run: StoredRun
    cell: Cell
    used: Mapping[str, str]
    paths: Mapping[str, str] = field(default_factory=dict)


class _MissingFileError(Exception):
    """A program or file that one side was measured with no longer exists."""


def make_confirmation(before: StoredRun, after: StoredRun, policy: Mapping[str, Any]) -> Confirmation:
    """Return the plan; `policy` has fields of `Policy` that the user gave, None for those of the later run.

    Raises `UsageError` if no difference can be measured side by side.
    """
    differing: dict[str, None] = {}
    missing: dict[str, None] = {}
    cells: list[Cell] = []
    for pair in _pair_cells(before, after):
        names = _find_differences(*pair)
        try:
            had = [_restore_cell(side, names) for side in pair]
        except _MissingFileError as gone:
            missing |= dict.fromkeys(gone.args)
            continue
        if not names:
            continue
        for name in names:
            old, new = (_shorten_level(side.used.get(name)) for side in pair)
            differing[f"{name} {old} → {new}"] = None
        cells += _make_side_cells(pair, had)
    missing |= dict.fromkeys(_list_host_differences(before, after))
    if not cells:
        why = "; ".join(missing) or "the two runs measured the same"
        raise UsageError(
            f"no difference between the runs can be measured side by side: {why}",
            hint="to measure changes of the whole host: guestmark campaign --help",
        )
    given = select_given_values(policy)
    usual = after.plan.policy
    if {"precision", "time_limit_s"} & given.keys():
        usual = replace(usual, blocks=None)
    plan = Plan(
        "confirm",
        (*cells, *_make_null_copies(cells)),
        replace(usual, seed=secrets.randbits(32), **given),
        after.plan.metrics,
        _make_context(before, after),
        title=f"{before.id} against {after.id}, side by side",
    )
    return Confirmation(restore_values(plan, os.environ)[0], tuple(differing), tuple(missing))


def _make_context(before: StoredRun, after: StoredRun) -> Context:
    """Return a context with the later run's directory, variables and costs, and nothing else of its context."""
    context, caller = after.plan.context, Caller.current()
    if context.cwd:
        caller = replace(caller, cwd=context.cwd, env=context.env)
    return replace(
        Context.for_caller(caller),
        env_names=context.env_names,
        cost=context.cost,
        confirms=(before.id, after.id),
    )


def _pair_cells(before: StoredRun, after: StoredRun) -> Iterator[tuple[_ComparedSide, _ComparedSide]]:
    """Yield the cells that both runs have; levels that may differ between the runs are ignored."""
    one_each = _has_one_workload(before) and _has_one_workload(after)
    olds = {_make_pairing_key(cell, one_each): cell for cell in before.plan.cells if cell.null_of is None}
    for cell in after.plan.cells:
        old = olds.get(_make_pairing_key(cell, one_each))
        if cell.null_of is None and old is not None and old.workload.name == cell.workload.name:
            yield _describe_side(before, old), _describe_side(after, cell)


def _has_one_workload(run: StoredRun) -> bool:
    return len({cell.workload.key for cell in run.plan.cells}) == 1


def _make_pairing_key(cell: Cell, one_workload: bool) -> tuple[Any, ...]:
    params = None if one_workload else repr(sorted(cell.workload.params.items()))
    levels = {name: level for name, level in cell.factors.items() if not _is_file_factor(name)}
    return (cell.workload.name, params, str(cell.platform), tuple(sorted(levels.items())))


def _is_file_factor(factor: str) -> bool:
    return factor in FILE_FACTORS or is_variable(factor)


def _describe_side(run: StoredRun, cell: Cell) -> _ComparedSide:
    trial = _find_last_good_trial(run, cell)
    used = {name: level for name, level in cell.factors.items() if _is_file_factor(name)}
    paths: dict[str, str] = {}
    kind = workload_kind(cell.workload.name)
    if kind.runs_command:
        used["command"] = " ".join(kind.user_command(kind.params_of(cell.workload)))
    if trial is not None:
        if program := trial.facts.find_fact(Program):
            paths["program"] = program.host_path
        used |= dict(_read_attested(run, trial))
    return _ComparedSide(run, cell, used, paths)


def _find_last_good_trial(run: StoredRun, cell: Cell) -> Trial | None:
    for trial in reversed(run.trials):
        if trial.cell_id == cell.id and trial.status is TrialStatus.OK:
            return trial
    return None


def _read_attested(run: StoredRun, trial: Trial) -> Iterator[tuple[str, str]]:
    program = trial.facts.find_fact(Program)
    if program is not None and program.host_sha256:
        yield "program", program.host_sha256
    machine = trial.facts.find_fact(GuestMachine)
    if machine is None:
        return
    yield "kernel", machine.guest.kernel
    if machine.vmm is not None:
        told = _find_recorded_version(run, trial)
        version = machine.vmm.qemu
        if version in told:
            # What QEMU prints also names its package, by which the same build can be found again.
            version = _parse_qemu_version(told)
        yield "qemu", version


def _find_recorded_version(run: StoredRun, trial: Trial) -> str:
    """Return what the program that ran the trial's machine printed for --version; empty if nothing is known."""
    if not run.environments:
        return ""
    name = ""
    if trial.command_line:
        name = os.path.basename(trial.command_line[0])
    versions: Mapping[str, str] = run.environments[-1].get("programs") or {}
    return versions.get(name, "")


def _parse_qemu_version(line: str) -> str:
    """Return the version from the first line that QEMU prints, such as `7.2.22 (Debian 1:7.2+dfsg-7)`."""
    return line.partition(" version ")[2] or line


def _find_differences(before: _ComparedSide, after: _ComparedSide) -> list[str]:
    names = dict.fromkeys([*before.used, *after.used])
    return [name for name in names if before.used.get(name) != after.used.get(name)]


def _restore_cell(side: _ComparedSide, names: Sequence[str]) -> Cell:
    """Return the side's cell as it can be measured now. Raises `_MissingFileError`."""
    cell, levels = side.cell, dict(side.cell.factors)
    params = dict(cell.workload.params)
    if path := side.paths.get("program"):
        if _hash_file(path) != side.used["program"]:
            raise _MissingFileError(f"{path} has changed since run {side.run.id}, and the old file is gone")
        cwd = side.run.plan.context.cwd
        if workload_kind(cell.workload.name).runs_command and cell.platform.shares_root and cwd:
            params["cwd"] = cwd
    for name in names:
        if name == "kernel":
            levels["kernel"] = _find_side_kernel(side)
        elif name == "qemu":
            levels["qemu"] = _find_qemu(side)
        elif name in FILE_FACTORS and name in levels and not os.path.exists(levels[name]):
            raise _MissingFileError(f"{levels[name]} of run {side.run.id} is gone")
    return replace(cell, workload=replace(cell.workload, params=params), factors=levels)


def _hash_file(path: str) -> str:
    try:
        return compute_sha256(path)
    except OSError:
        return ""


def _find_side_kernel(side: _ComparedSide) -> str:
    release = side.used["kernel"]
    is_uml = side.cell.platform.inner.kind == "uml"
    given = side.cell.levels.get(KERNEL) or None
    if given is None and is_uml:
        given = shutil.which("linux.uml")
    if given is not None:
        try:
            if read_release(Path(given)) == release:
                return given
        except (GuestmarkError, OSError):
            pass
    found = find_image_by_release(release)
    if found is None or is_uml:
        raise _MissingFileError(f"kernel {release}, which run {side.run.id} used, is no longer here")
    return str(found)


def _find_qemu(side: _ComparedSide) -> str:
    wanted = side.used["qemu"]
    given = side.cell.levels.get(PROGRAM) or find_host_architecture().emulator.path
    if given is not None and _ask_version(given).startswith(wanted):
        return given
    if package := _DEBIAN.search(wanted):
        try:
            return str(PROGRAM.parse(f"apt:{package[1]}"))
        except (ValueError, GuestmarkError):
            pass
    raise _MissingFileError(f"QEMU {wanted}, which run {side.run.id} used, is no longer here")


def _ask_version(program: str) -> str:
    try:
        told = subprocess.run(
            [program, "--version"], capture_output=True, text=True, timeout=_VERSION_S, check=False
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return _parse_qemu_version(told.partition("\n")[0])


def _make_side_cells(pair: Sequence[_ComparedSide], had: Sequence[Cell]) -> Iterator[Cell]:
    """Yield both cells under the names of their sides, as a separate table."""
    group = pair[1].cell.id
    for side, name, cell in zip(pair, SIDES, had, strict=True):
        key = f"{name}-{cell.workload.key}" if cell.workload.key else name
        label = f"{cell.workload.label or cell.workload.name} ({name})"
        shown = {factor: name for factor in cell.factors if factor in FILE_FACTORS}
        yield replace(
            cell,
            id=f"{name} {side.cell.id}",
            workload=replace(cell.workload, key=key, label=label),
            baseline=name == SIDES[0],
            group=group,
            labels={**cell.labels, **shown},
        )


def _make_null_copies(cells: Sequence[Cell]) -> Iterator[Cell]:
    for cell in cells:
        if cell.baseline:
            yield replace(cell, id=f"{cell.id}#2", baseline=False, null_of=cell.id, added=True)


def _list_host_differences(before: StoredRun, after: StoredRun) -> Iterator[str]:
    """Yield the differences of the host itself, which is now the same for both sides."""
    decisive, _ = compare_environments(before.environment, after.environment, frozenset())
    for name, said in decisive.items():
        yield f"the host's {name} ({said}) is now the same for both"


def _shorten_level(value: str | None) -> str:
    if value is None:
        return "none"
    if re.fullmatch(r"[0-9a-f]{64}", value):
        return value[:12]
    return value
