"""Finds out whether a platform is usable by starting it, and caches the finding for the current boot of the host."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

from guestmark.appliance.paths import locate_cache
from guestmark.core import factor, procfs, registry
from guestmark.core.cause import Cause
from guestmark.core.discovery import list_settings_for
from guestmark.core.errors import GuestmarkError
from guestmark.core.model import Cell, WorkloadSpec
from guestmark.core.own_program import find_agent_binary
from guestmark.core.parallel import run_together
from guestmark.core.platform_kind import OWN_PARAMETER
from guestmark.core.platform_spec import parse_platform
from guestmark.core.temporary import replace_file
from guestmark.platforms.base import Machine, Unusable, Usable
from guestmark.platforms.confinement import describe_confinement
from guestmark.setting.machine import VMM

# `doctor` tries all platforms at the same time; a nested platform gets the rest of the total time.
DOCTOR_DEADLINE_S = 12.0
DOCTOR_IN_ALL_S = 14.5
NO_FACTORS: Mapping[str, str] = MappingProxyType({})
# The same deadlines on a busy host, where guests start more slowly.
BUSY_DEADLINE_S = 45.0
BUSY_IN_ALL_S = 90.0
# With less time left, starting a nested guest would time out.
_LEAST_NESTED_S = 5.0
# The number of runnable threads fluctuates, so the smallest of several readings is used.
_LOOKS, _APART_S = 3, 0.05


class Startable(Protocol):
    """A platform whose start has a deadline."""

    name: str

    def start(self, cell: Cell, deadline_s: float | None = None) -> AbstractContextManager[Machine]:
        """Starts a fresh machine for the cell, to be ready within `deadline_s`."""

    def probe(
        self, deadline_s: float | None = None, factors: Mapping[str, str] = NO_FACTORS
    ) -> Usable | Unusable:
        """Starts a machine, to be ready within `deadline_s`, and returns whether that works.

        `factors` are levels that differ from the defaults.
        """


def probe_by_start(
    platform: Startable,
    deadline_s: float,
    cell: Cell | None = None,
    factors: Mapping[str, str] = NO_FACTORS,
) -> Usable | Unusable:
    """Boots a guest with default factors (or `factors`, or those of `cell`), attests it and stops it."""
    cell = cell or Cell("probe", WorkloadSpec("probe"), parse_platform(platform.name), dict(factors))
    try:
        with platform.start(cell, deadline_s) as guest:
            confined = ""
            if found := guest.attest().confined:
                confined = describe_confinement(found)
            return Usable(guest.phases["ready"], confined)
    except GuestmarkError as error:
        return Unusable.from_error(error)


FILE_FACTORS = tuple(known.name for known in list_settings_for(factor.Machine.GUEST) if known.path)


def list_deciding_factors(cell: Cell) -> list[str]:
    """Returns the factors of the cell whose levels decide whether its platform can be used.

    These are the factors with a guest's files, those that make another machine fresh, and the parameters of the user's
    own machines. A nested platform is tried with default files, except for the small hypervisor, which only the
    innermost guest uses.
    """
    spec = cell.platform
    names = (VMM.name,) if spec.is_nested else FILE_FACTORS
    outer = spec.outer.description
    if outer.remote:
        names += tuple(factor.name for factor in outer.accepted_inside)
    return [name for name in cell.factors if name in names or name.startswith(OWN_PARAMETER)]


class PlatformVariant:
    """A platform with the levels of deciding factors that cells request, such as a kernel.

    `name` contains the levels, with size and time of files among them.
    """

    def __init__(self, platform: Startable, levels: Mapping[str, str]) -> None:
        self._platform = platform
        self._levels = dict(levels)
        words = [platform.name]
        for name, level in levels.items():
            stamp = level
            if name in FILE_FACTORS:
                stamp = _stamp_file(level)
            words.append(f"{name}={stamp}")
        self.name = " ".join(words)

    def start(self, cell: Cell, deadline_s: float | None = None) -> AbstractContextManager[Machine]:
        """See `Platform.start`."""
        return self._platform.start(cell, deadline_s)

    def probe(self, deadline_s: float | None = None) -> Usable | Unusable:
        """Starts a machine with these levels and attests it; if that fails, the error is the reason."""
        return self._platform.probe(deadline_s, self._levels)


def probe_all(
    platforms: Iterable[Startable], *, deadline_s: float | None = None, refresh: bool = False
) -> dict[str, Usable | Unusable]:
    """Probes platforms in parallel, each with `deadline_s` (None: the longest time that a start may take).

    Cached findings are used unless `refresh` is set. A finding is valid for one boot of the host, one build of the
    agent and one hypervisor binary. Guests that were only late are not cached, because a busy machine may become idle;
    neither are guests that were killed, for instance for lack of memory, or that lacked space.
    """
    wanted = list(platforms)
    known = {} if refresh else _read_findings()
    missing = [platform for platform in wanted if platform.name not in known]
    if missing:
        # Nested guests need more processors, so they are probed one after the other.
        nested = [platform for platform in missing if parse_platform(platform.name.split(" ")[0]).is_nested]
        single = [platform for platform in missing if platform not in nested]
        results = run_together(partial(platform.probe, deadline_s) for platform in single)
        for platform in nested:
            results += run_together([partial(platform.probe, deadline_s)])
        found = {platform.name: result for platform, result in zip([*single, *nested], results, strict=True)}
        known = {**known, **found}
        lasting = {}
        for name, finding in found.items():
            if _is_lasting(name, finding) and not _is_about_other_machine(name):
                lasting[name] = finding
        _store_findings({**_read_findings(), **lasting})
    return {platform.name: known[platform.name] for platform in wanted}


def recall_findings(platforms: Iterable[Startable]) -> dict[str, Usable | Unusable]:
    """Returns the cached findings about platforms; a platform that was not tried yet counts as usable."""
    known = _read_findings()
    return {platform.name: known.get(platform.name, Usable(0.0)) for platform in platforms}


def probe_nested(
    platform: Startable, left_s: float | None, *, refresh: bool = False
) -> Usable | Unusable | None:
    """Probes a nested platform within `left_s` (None: without another limit than the platform's).

    A cached finding is used unless `refresh` is set. Returns None if there was not enough time.
    """
    if left_s is not None and left_s < _LEAST_NESTED_S:
        if refresh:
            return None
        return _read_findings().get(platform.name)
    found = probe_all([platform], deadline_s=left_s, refresh=refresh)[platform.name]
    if left_s is not None and was_late(found):
        return None
    return found


def measure_overload() -> float | None:
    """Returns the number of runnable threads of other programs if it exceeds that of processors; else None.

    It is the mean of the last minute, or the current number if that is larger.
    """
    averages, now = _read_load()
    for _ in range(_LOOKS - 1):
        time.sleep(_APART_S)
        now = min(now, _read_load()[1])
    found = max(averages, now)
    return found if found > len(os.sched_getaffinity(0)) else None


def _read_load() -> tuple[float, float]:
    words = procfs.read_text(procfs.PROC / "loadavg").split()
    if len(words) < 4:
        return 0.0, 0.0
    # The second number includes this process.
    return float(words[0]), float(words[3].partition("/")[0]) - 1


def was_late(finding: Usable | Unusable | None) -> bool:
    """Returns whether a guest was still starting at its deadline."""
    return isinstance(finding, Unusable) and finding.cause is Cause.LATE


def _is_lasting(name: str, finding: Usable | Unusable) -> bool:
    """Returns whether a finding is valid until the host restarts or a program changes.

    Programs for another architecture may be installed at any time, and are not among those whose changes are noticed.
    """
    return isinstance(finding, Usable) or not (_is_temporary(finding) or "@" in name)


def _is_about_other_machine(name: str) -> bool:
    """Returns whether the finding is about another machine, which may have been replaced since."""
    return parse_platform(name.split(" ", maxsplit=1)[0]).is_elsewhere


def _is_temporary(finding: Usable | Unusable) -> bool:
    return isinstance(finding, Unusable) and finding.cause.may_pass


def _read_findings() -> dict[str, Usable | Unusable]:
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        stored: Mapping[str, Any] = json.loads(_locate_findings().read_text())
        if stored["valid_for"] == _describe_circumstances():
            return {name: _decode_finding(finding) for name, finding in stored["findings"].items()}
    return {}


def _store_findings(findings: Mapping[str, Usable | Unusable]) -> None:
    stored = {
        "valid_for": _describe_circumstances(),
        "at": time.time(),
        "findings": {name: _encode_finding(finding) for name, finding in findings.items()},
    }
    # If a finding cannot be stored, the platform is probed again next time.
    with contextlib.suppress(OSError), replace_file(_locate_findings(), 0o644) as part:
        part.write_text(json.dumps(stored, indent=1))


def _encode_finding(finding: Usable | Unusable) -> dict[str, Any]:
    if isinstance(finding, Usable):
        return {"usable": True, "ready_s": finding.ready_s, "confined": finding.confined}
    return {
        "usable": False,
        "reason": finding.reason,
        "hint": finding.hint,
        "cause": finding.cause.value,
    }


def _decode_finding(stored: Mapping[str, Any]) -> Usable | Unusable:
    if stored["usable"]:
        return Usable(stored["ready_s"], stored["confined"])
    return Unusable(stored["reason"], stored["hint"], Cause(stored["cause"]))


def _locate_findings() -> Path:
    return locate_cache() / "probes.json"


def _describe_circumstances() -> list[str]:
    programs = [
        *(shutil.which(program.name) for program in registry.programs(workloads=())),
        str(find_agent_binary()),
        "/dev/kvm",
    ]
    return [
        Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
        str(os.getuid()),
        " ".join(map(str, sorted({os.getegid(), *os.getgroups()}))),
        f"kvm {os.access('/dev/kvm', os.R_OK | os.W_OK)}",
        *_list_restrictions(),
        *map(_stamp_file, programs),
    ]


def _list_restrictions() -> list[str]:
    """Returns restrictions of this process that other processes may not have; UML needs ptrace, for example."""
    named = ("CapEff:", "NoNewPrivs:", "Seccomp:")
    with contextlib.suppress(OSError):
        lines = Path("/proc/self/status").read_text().splitlines()
        return [" ".join(line.split()) for line in lines if line.startswith(named)]
    return []


def _stamp_file(path: str | None) -> str:
    if path is None:
        return "none"
    try:
        found = Path(path).stat()
    except OSError:
        return f"{path}: none"
    return f"{path}: {found.st_size} {found.st_mtime_ns} {found.st_mode}"
