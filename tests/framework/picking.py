"""Decides which long tests run with a change, and in which order: `./test --long --for 20m`.

Tests of the packages that the last commits touched come first, for a third of the time; then those that failed last or
have waited longest on this machine. If the machine remembers nothing, as in a fresh clone, one sixth of them comes
first, which the number of the commit selects, so that six successive changes run all of them.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import json
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from pathlib import Path

from tests.framework import costs
from tests.framework.spreading import scope_of

ROOT = Path(__file__).resolve().parents[2]
_LATEST = ("log", "--since=2 days ago", "--max-count=60", "--name-only", "--format=")
PARTS = 6
# Share of the time for tests near what was changed; the rest, 13 of 20 minutes, is for one of the `PARTS`.
_NEAR_SHARE = 1 / 3
_SLOWER = 4  # beside other tests, one that never ran here may take this many times its published time


@dataclass(frozen=True, slots=True)
class Remembered:
    """The last run of a test: when it ran (seconds since the epoch), its duration, and its processor time.

    The processor time is 0 if it was not counted.
    """

    at: float
    seconds: float
    processor_s: float = 0.0


def git(*words: str) -> str:
    """Return git's output about this checkout; empty if it is no git checkout."""
    done = subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else ""


def touched_packages(paths: Iterable[str]) -> dict[str, int]:
    """Count these files by package: `guestmark.disks`, `guestmark.workloads.netboot`, `bench.truth`.

    Crates count as the packages that start their programs.
    """
    found: dict[str, int] = {}
    for path in filter(None, map(str.strip, paths)):
        parts = Path(path).parts
        if parts[:2] == ("python", "guestmark") and len(parts) > 3:
            depth = 3 if parts[2] in {"platforms", "workloads"} and len(parts) > 4 else 2
            name = ".".join(("guestmark", *parts[2 : 1 + depth]))
        elif parts[:1] == ("crates",):
            name = "guestmark.capture" if parts[1] == "capture" else "guestmark.agent"
        elif parts[:1] == ("bench",) and len(parts) > 1:
            name = f"bench.{Path(parts[1]).stem}"
        else:
            continue
        found[name] = found.get(name, 0) + 1
    return found


def imported_modules(source: str) -> set[str]:
    """Return the modules that a test's source imports anywhere, and the full names that it imports from them."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


@functools.cache
def _modules_of(file: Path) -> frozenset[str]:
    return frozenset(imported_modules(file.read_text()))


def nearness(file: Path, touched: Mapping[str, int]) -> int:
    """Count the touched files in packages that a test file imports or is named after."""
    modules = _modules_of(file)
    words = set(file.stem.split("_"))
    return sum(
        count
        for package, count in touched.items()
        if package.rpartition(".")[2] in words
        or any(module == package or module.startswith(f"{package}.") for module in modules)
    )


@dataclass(frozen=True, slots=True)
class Change:
    """A change: the number of touched files in each package, its commit, and the number of commits up to it."""

    touched: Mapping[str, int]
    commit: str
    number: int = 0

    def draw(self, text: str) -> str:
        """Return a random text for a text, which is always the same for one commit; used to sort."""
        return hashlib.sha256(f"{self.commit} {text}".encode()).hexdigest()


@dataclass(slots=True)
class _Group:
    """Tests that stay together on one worker; `name` is the name of what they share."""

    name: str
    file: Path
    tests: list[str] = field(default_factory=list)
    seconds: float = 0.0
    # When the one that has waited longest was run; 0 if it never was, or failed.
    at: float = 0.0
    part: int = 0


def order_of(
    tests: Sequence[tuple[str, Path]],
    change: Change,
    remembered: Mapping[str, Remembered],
    room_s: float,
) -> list[str]:
    """Return the tests, given by name with their file, in the order in which they run.

    `room_s` is the processor time that all of them may use. Tests that share a machine stay together.
    """
    groups = _group_tests(tests, remembered)
    for each in groups:
        each.tests.sort(key=lambda name: (_last_run(name, remembered), change.draw(name)))
    near = {file: nearness(file, change.touched) for file in {each.file for each in groups}}
    by_need = sorted(
        groups, key=lambda each: (each.at, each.part != change.number % PARTS, change.draw(each.name))
    )
    ranked = dict.fromkeys(each.name for each in _take_near(by_need, near, room_s * _NEAR_SHARE))
    ranked |= dict.fromkeys(each.name for each in by_need)
    named = {each.name: each for each in groups}
    return [test for name in ranked for test in named[name].tests]


def _group_tests(tests: Sequence[tuple[str, Path]], remembered: Mapping[str, Remembered]) -> list[_Group]:
    """Group tests by what they share, and assign each group to one of the parts, which take about equally long."""
    found: dict[str, _Group] = {}
    for name, file in tests:
        scope = scope_of(name)
        group = found.setdefault(scope, _Group(scope, file, at=_last_run(name, remembered)))
        group.tests.append(name)
        group.seconds += expected_s(name, remembered)
        group.at = min(group.at, _last_run(name, remembered))
    loads = [0.0] * PARTS
    # By what is published, not by what is remembered: the parts have to be the same with each change.
    for group in sorted(found.values(), key=lambda each: (-costs.sum_published(each.tests), each.name)):
        group.part = loads.index(min(loads))
        loads[group.part] += costs.sum_published(group.tests)
    return list(found.values())


def _take_near(by_need: Sequence[_Group], near: Mapping[Path, int], room_s: float) -> list[_Group]:
    """Return the groups nearest to the change that fit into this time."""
    taken = []
    for each in sorted(by_need, key=lambda each: -near[each.file]):
        if near[each.file] and each.seconds <= room_s:
            taken.append(each)
            room_s -= each.seconds
    return taken


def _last_run(name: str, remembered: Mapping[str, Remembered]) -> float:
    return remembered[name].at if name in remembered else 0.0


def expected_s(name: str, remembered: Mapping[str, Remembered]) -> float:
    """Return the processor seconds that a test is likely to take here."""
    known = remembered[name].processor_s if name in remembered else 0.0
    return known or costs.published_s(name)


def fits(name: str, left_s: float, remembered: Mapping[str, Remembered]) -> bool:
    """Return whether a test is likely to end within the time left."""
    return left_s > (remembered[name].seconds if name in remembered else costs.published_s(name) * _SLOWER)


def read_memory(file: Path) -> dict[str, Remembered]:
    """Return what is remembered in `file`; empty if it is missing or damaged."""
    try:
        stored = json.loads(file.read_text())
        return {name: Remembered(*map(float, values)) for name, values in stored.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def write_memory(file: Path, remembered: Mapping[str, Remembered]) -> None:
    """Store what is remembered for the next run, atomically."""
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_name(f"{file.name}.new")
    part.write_text(json.dumps({name: astuple(each) for name, each in sorted(remembered.items())}))
    part.replace(file)


def latest_paths() -> list[str]:
    """Return the files of the last commits, up to two days old, and those with uncommitted changes."""
    return [*git(*_LATEST).splitlines(), *git("diff", "--name-only", "HEAD").splitlines()]


def latest_change() -> Change:
    """Return the latest change of this checkout."""
    count = git("rev-list", "--count", "HEAD").strip()
    return Change(touched_packages(latest_paths()), git("rev-parse", "HEAD").strip(), int(count or 0))
