"""Which of the long tests run with a change, and in which order: `./test --long --for 20m`.

First those of the packages that the last commits touched, then those that have waited longest on this machine; the
commit's hash decides among equals, so that machines that remember nothing take different ones each time.
"""

from __future__ import annotations

import ast
import hashlib
import json
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_LATEST = ("log", "--since=2 days ago", "--max-count=60", "--name-only", "--format=")
_UNKNOWN_S = 60.0  # what a test that never ran here is expected to take


@dataclass(frozen=True, slots=True)
class Remembered:
    """The last time that a test ran: when (seconds since the epoch), and how long it took."""

    at: float
    seconds: float


def git(*words: str) -> str:
    """What git says of this checkout; empty where there is none."""
    done = subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else ""


def touched_packages(paths: Iterable[str]) -> dict[str, int]:
    """How many of these files are in each package: `guestmark.disks`, `guestmark.workloads.netboot`, `bench.truth`.

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
    """Modules that a test's source imports anywhere in it, with the names that it imports from them."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def nearness(file: Path, touched: Mapping[str, int]) -> int:
    """How many touched files are in packages that a file of tests imports, or is named after."""
    modules = imported_modules(file.read_text())
    words = set(file.stem.split("_"))
    return sum(
        count
        for package, count in touched.items()
        if package.rpartition(".")[2] in words
        or any(module == package or module.startswith(f"{package}.") for module in modules)
    )


def order_of(
    tests: Sequence[tuple[str, Path]],
    touched: Mapping[str, int],
    remembered: Mapping[str, Remembered],
    commit: str,
) -> list[str]:
    """The tests, given by name with their file, in the order in which they are taken. Those of a file stay together."""
    files = {file for _, file in tests}
    near = {file: nearness(file, touched) for file in files}
    waited: dict[Path, float] = {}
    for name, file in tests:
        last = remembered[name].at if name in remembered else 0.0
        waited[file] = min(waited.get(file, last), last)
    chance = {file: hashlib.sha256(f"{commit} {file.name}".encode()).hexdigest() for file in files}
    ranked = sorted(files, key=lambda file: (near[file] == 0, -near[file], waited[file], chance[file]))
    place = {file: number for number, file in enumerate(ranked)}

    def rank(test: tuple[str, Path]) -> tuple[int, float, str]:
        name, file = test
        last = remembered[name].at if name in remembered else 0.0
        return place[file], last, hashlib.sha256(f"{commit} {name}".encode()).hexdigest()

    return [name for name, _ in sorted(tests, key=rank)]


def fits(name: str, left_s: float, remembered: Mapping[str, Remembered]) -> bool:
    """Whether a test is likely to end within the time that is left."""
    return left_s > (remembered[name].seconds if name in remembered else _UNKNOWN_S)


def read_memory(file: Path) -> dict[str, Remembered]:
    """What is remembered in `file`; nothing where it is missing or damaged."""
    try:
        stored = json.loads(file.read_text())
        return {name: Remembered(float(at), float(seconds)) for name, (at, seconds) in stored.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def write_memory(file: Path, remembered: Mapping[str, Remembered]) -> None:
    """Keeps it for the next run, whole or not at all."""
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_name(f"{file.name}.new")
    part.write_text(json.dumps({name: (each.at, each.seconds) for name, each in sorted(remembered.items())}))
    part.replace(file)


def latest_paths() -> list[str]:
    """The files of the last commits, at most of two days, and those that are changed now."""
    return [*git(*_LATEST).splitlines(), *git("diff", "--name-only", "HEAD").splitlines()]
