"""Checks whether a factor of guests meets its contract."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from guestmark.core import registry
from guestmark.core.errors import PlatformUnusableError, UsageError
from guestmark.core.factor import Setting
from guestmark.core.model import Cell, WorkloadSpec
from guestmark.core.platform_spec import PlatformSpec
from guestmark.platforms import registry as platforms
from guestmark.setting.base import DiskSetting
from guestmark.setting.disk import Disks
from guestmark.setting.drive import BUS
from guestmark.testing.platform import start_and_attest
from guestmark.testing.rules import Rule, Violation, collect_violations

_ABOUT_LEVELS = frozenset({"parse", "read", "refuse"})


def check_factor(name: str, on: str = "tcg", levels: Sequence[str] = ()) -> list[Violation]:
    """Return the violations of a factor of guests at two of its levels, by default the first two that it offers.

    A guest is started at each level. The two levels must result in different options, and the attestation of at least
    one guest must detect that the guest does not have the other level. A factor of disks is also tried on every other
    bus that it does not refuse, because QEMU exits at once if a device lacks an option.
    """
    factor = registry.factors().get(name)
    if not isinstance(factor, Setting):
        return [
            Violation(
                Rule.DESCRIBED, f"{name} is not a factor of guests", "use a MachineSetting or a DiskSetting"
            )
        ]
    pair = tuple(levels or factor.levels)[:2]
    if len(pair) < 2:
        return [Violation(Rule.FACTORS, f"{name} has fewer than two levels", "give two: levels=(…, …)")]
    if found := [*_check_parsing(factor, pair)]:
        return found
    disk = {"size": "16M", "filesystem": "ext4"} if isinstance(factor, DiskSetting) else {}
    seen = _FactorEffects()
    for level, other in (pair, pair[::-1]):
        factors = {**disk, name: factor.parse(level)}
        cell = Cell("checked", WorkloadSpec("checked"), PlatformSpec.read(on), factors)
        with _record_effects(factor, factor.read(factor.parse(other)), seen):
            found += collect_violations(f"a guest with {name}={level}", _check_start(cell))
    if found:
        return found
    if not seen.differs:
        what = f"{name}={pair[0]} has the same effect as {name}={pair[1]}: it does not reach the guest"
        found.append(Violation(Rule.FACTORS, what, "add a function that returns options, such as device="))
    if not seen.compared:
        found.append(Violation(Rule.FACTORS, f"{name} is not attested", "set attest= to a function"))
    elif not seen.told_apart:
        what = f"the attestation accepts a guest with {name}={pair[0]} as one with {name}={pair[1]}"
        found.append(Violation(Rule.FACTORS, what, "compare what depends on the level"))
    if isinstance(factor, DiskSetting) and factor is not BUS:
        found += _check_other_buses(factor, {**disk, name: factor.parse(pair[1])}, PlatformSpec.read(on))
    return found


def _check_other_buses(
    factor: DiskSetting[Any], factors: Mapping[str, str], platform: PlatformSpec
) -> Iterator[Violation]:
    """Yield violations on starting a guest with a level of the factor, on each bus that the factor accepts."""
    if not platform.takes_factor(BUS.name):
        return
    for level in BUS.levels:
        cell = Cell("checked", WorkloadSpec("checked"), platform, {**factors, BUS.name: level})
        if level == BUS.default or _is_refused(cell):
            continue
        yield from collect_violations(
            f"a guest with {factor.name}={factors[factor.name]} on bus={level}",
            _check_start_if_possible(cell),
        )


def _is_refused(cell: Cell) -> bool:
    try:
        cell.view(Disks)
    except UsageError:
        return True
    return False


def _check_start_if_possible(cell: Cell) -> Iterator[Violation]:
    # A bus may need a program that is not installed here, such as qemu-storage-daemon.
    with contextlib.suppress(PlatformUnusableError):
        yield from _check_start(cell)


def _check_start(cell: Cell) -> Iterator[Violation]:
    start_and_attest(platforms.get_platform(cell.platform), cell)
    yield from ()


@dataclass(slots=True)
class _FactorEffects:
    """The effects of a factor, recorded while a guest was started and attested."""

    differs: bool = False  # its options differ at another level
    compared: bool = False  # something was attested
    # The attestation fails at another level.
    told_apart: bool = False


@contextlib.contextmanager
def _record_effects(factor: Setting[Any], other: object, seen: _FactorEffects) -> Iterator[None]:
    """Record calls of a factor's functions, and call each of them for the `other` level as well.

    Machines look up the factor, of which there is one object, so the functions of that object are replaced.
    """
    functions = {}
    for field in dataclasses.fields(factor):
        if callable(getattr(factor, field.name)) and field.name not in _ABOUT_LEVELS:
            functions[field.name] = getattr(factor, field.name)

    def record_call(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(level: object, *rest: object) -> Any:
            if not name.startswith("attest"):
                made = function(level, *rest)
                seen.differs |= made != function(other, *rest)
                return made
            checks = list(function(level, *rest))
            seen.compared |= bool(checks)
            seen.told_apart |= any(check.asked != check.found for check in function(other, *rest))
            return checks

        return call

    try:
        for name, function in functions.items():
            object.__setattr__(factor, name, record_call(name, function))
        yield
    finally:
        for name, function in functions.items():
            object.__setattr__(factor, name, function)


def _check_parsing(factor: Setting[Any], levels: Sequence[str]) -> Iterator[Violation]:
    """Yield violations unless each level has a unique spelling, and an invalid one raises `ValueError`."""
    for level in levels:
        try:
            text = factor.parse(level)
            factor.read(text)
            if factor.parse(text) != text:
                yield Violation(
                    Rule.FACTORS, f"{level!r} has no unique spelling", "parse(parse(x)) must equal parse(x)"
                )
        # Extensions may raise anything.
        except Exception as error:
            yield Violation(
                Rule.FACTORS, f"its level {level!r} is refused: {error!r}", "correct levels or parse"
            )
    try:
        factor.parse("\0 no such level")
    except ValueError:
        pass
    except Exception as error:
        yield Violation(
            Rule.FACTORS, f"parse() raised {error!r} for an invalid level", "raise ValueError with one line"
        )
