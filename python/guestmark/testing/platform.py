"""Checks whether a platform meets its contract."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any

from guestmark.core import discovery
from guestmark.core.errors import (
    GuestmarkError,
    MachineError,
    PlatformUnusableError,
)
from guestmark.core.findings import Facts, flatten_fact
from guestmark.core.machine_facts import MachineFacts
from guestmark.core.model import Cell, WorkloadSpec
from guestmark.core.platform_spec import PlatformSpec
from guestmark.ledger import codec
from guestmark.platforms import registry as platforms
from guestmark.platforms.base import Machine, Platform, Unusable, Usable
from guestmark.setting.machine import PLACEMENT
from guestmark.testing.rules import (
    Rule,
    Violation,
    check_import_cost,
    check_loading,
    collect_violations,
    make_not_found_violation,
    make_untyped_error_violation,
    run_guarded,
)
from guestmark.testing.trials import check_interruption, check_level_read, kill_machine, watch_orphans

_DEAD_WITHIN_S = 2.0


def check_platform(name: str) -> list[Violation]:
    """Return the violations of the platform of that name, such as `unshare`; its machines run on this host."""
    try:
        spec = PlatformSpec.read(name)
        kind = spec.inner.description
    except (GuestmarkError, ValueError) as error:
        return [make_not_found_violation(error)]
    loaders = {"load_class": kind.load_class, "load_nested_class": kind.load_nested_class}
    given = {name: load for name, load in loaders.items() if load is not None}
    if found := list(check_loading(kind.help, given)):
        return found

    def describes(module: ModuleType) -> bool:
        return any(platform.name == kind.name for platform in getattr(module, "PLATFORMS", ()))

    found += check_import_cost(describes, [load().__module__ for load in given.values()])
    platform, broken = run_guarded(f"creating {name}", lambda: platforms.get_platform(name))
    if platform is None:
        return [*found, *broken]
    usable, broken = run_guarded("probe()", platform.probe)
    if broken or not isinstance(usable, Usable):
        reason, hint = _explain_unusable(usable)
        return [*found, *(broken or [Violation(Rule.STARTED, f"it cannot be used here: {reason}", hint)])]
    cell = Cell("checked", WorkloadSpec("exec", {"argv": ["sleep", "60"]}), spec)
    _, broken = run_guarded("a machine", lambda: start_and_attest(platform, cell))
    found += broken
    if broken:
        return found
    with platform.start(cell) as machine:
        found += _check_members(machine)
        found += _check_attestation(machine, cell)
    found += collect_violations("a machine on which something runs", _check_processes_end(platform, cell))
    found += _check_killed_machine(platform, cell)
    found += _check_missing_programs(platform, cell)
    for factor in kind.factors:
        if factor not in discovery.list_settings() or factor is PLACEMENT:
            found += check_level_read(cell, factor, _start_on_platform)
    if not any(violation.rule is Rule.ENDED for violation in found):  # else it would be found again
        found += collect_violations("an interrupted trial", check_interruption(cell))
    return found


def _explain_unusable(found: object) -> tuple[str, str]:
    """Return why the platform cannot be used, and what to do about it, from what `probe` returned."""
    if isinstance(found, Unusable):
        return found.reason, found.hint
    return f"probe() returned {found!r}", "return platforms.base.Usable or Unusable"


def _start_on_platform(cell: Cell) -> None:
    start_and_attest(platforms.get_platform(cell.platform), cell)


def start_and_attest(platform: Platform, cell: Cell) -> None:
    """Start a machine, attest it, and end it."""
    with platform.start(cell) as machine:
        machine.attest()


def _check_members(machine: Machine) -> Iterator[Violation]:
    """Yield violations unless the machine has all members of `platforms.base.Machine`, with valid values."""
    wanted: Mapping[str, Callable[[Any], bool]] = {
        "phases": lambda found: isinstance(found, Mapping) and all(second >= 0 for second in found.values()),
        "command_line": lambda found: isinstance(found, tuple) and bool(found),
        "vmm_pid": lambda found: found is None or isinstance(found, int),
        "disks": lambda found: isinstance(found, tuple),
        "place": lambda found: hasattr(found, "read"),
        "query": lambda found: found is None or callable(found),
        "console": lambda found: isinstance(found(), str),
        "vmm_stats": lambda found: isinstance(found(), Mapping),
        "counters": lambda found: isinstance(found(), Mapping),
    }
    for name, holds in wanted.items():
        try:
            right = holds(getattr(machine, name))
        # Extensions may raise anything.
        except Exception as error:
            yield Violation(
                Rule.STARTED, f"{name} of its machine raised {error!r}", "see platforms.base.Machine"
            )
        else:
            if not right:
                found = getattr(machine, name)
                yield Violation(
                    Rule.STARTED, f"{name} of its machine is {found!r}", "see platforms.base.Machine"
                )
    if "ready" not in machine.phases:
        yield Violation(
            Rule.STARTED, "its machine has no phase ready", "set phases['ready'] when the agent answers"
        )


def _check_attestation(machine: Machine, cell: Cell) -> Iterator[Violation]:
    found = machine.attest()
    if not isinstance(found, MachineFacts):
        yield Violation(
            Rule.ATTESTED, f"attest() returned {found!r}", "return facts of a class in core.machine_facts"
        )
        return
    kept = codec.load_json(codec.dump_json(flatten_fact(found)), dict, "what was attested")
    if Facts(kept).find_fact(type(found)) != found:
        yield Violation(Rule.ATTESTED, "the ledger does not return what was attested", "use plain types")
    kernel = getattr(found, "kernel", os.uname().release)
    own = cell.platform.inner.description.own_kernel
    if cell.platform.is_this_host and not own and kernel != os.uname().release:
        yield Violation(
            Rule.ATTESTED,
            f"its kernel is {kernel}, not this host's",
            "describe it with guest=True or own_kernel=True",
        )


def _check_processes_end(platform: Platform, cell: Cell) -> Iterator[Violation]:
    """Yield violations for processes in a session of their own that outlive a trial, whether it succeeds or fails."""
    for fails in (False, True):
        with watch_orphans() as left, contextlib.suppress(_TrialFailsError), platform.start(cell) as machine:
            machine.agent.exec(["setsid", "--fork", "sleep", "1000"], timeout_s=10)
            if fails:
                raise _TrialFailsError
        for pid, words in left:
            how = "a trial that fails" if fails else "a trial"
            yield Violation(
                Rule.ENDED, f"{words} (process {pid}) outlives {how}", "end it when start()'s context ends"
            )
        if left:
            return


class _TrialFailsError(Exception):
    """Raised to end a trial as a failed one."""


def _check_killed_machine(platform: Platform, cell: Cell) -> Iterator[Violation]:
    try:
        with platform.start(cell) as machine:
            kill_machine(machine)
            # The kernel may take a moment to end everything in its namespaces.
            deadline = time.monotonic() + _DEAD_WITHIN_S
            try:
                while time.monotonic() < deadline:
                    machine.agent.exec(["true"], timeout_s=5)
                    time.sleep(0.05)
            except MachineError:
                return
            yield Violation(
                Rule.TYPED, "a machine that was killed still runs programs", "set its pid or vmm_pid"
            )
    except GuestmarkError:
        return
    # Extensions may raise anything.
    except Exception as error:
        yield make_untyped_error_violation("leaving start() after its machine was killed", error)


def _check_missing_programs(platform: Platform, cell: Cell) -> Iterator[Violation]:
    """Yield violations unless starting without the platform's programs raises one of guestmark's errors."""
    if not cell.platform.inner.description.programs:
        return
    path = os.environ["PATH"]
    os.environ["PATH"] = "/nonexistent"
    try:
        with platform.start(cell):
            pass
    except (MachineError, PlatformUnusableError):
        return
    # Extensions may raise anything.
    except Exception as error:
        yield make_untyped_error_violation("start() without its programs", error)
    finally:
        os.environ["PATH"] = path
