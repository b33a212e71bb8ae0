"""The host made quiet: what makes speed wander (frequencies, idle states, siblings, kernel threads) is set aside.

Each setting is a file of the kernel. What it was is written down before it is changed: in a file below /run for
`guestmark quiet off`, and for one run also in the pipe of a keeper, which puts everything back when the run's process
has ended, in whatever way.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from guestmark.core.errors import GuestmarkError, UsageError
from guestmark.core.temporary import replacing

ROOT = Path("/")
_STATE = "run/guestmark-quiet.json"
_SLOW_WAKE_US = 10  # idle states that take longer to leave are not entered
# The last change is undone first. The end of the input is the end of the run, however that came.
_KEEPER = """trap '' INT TERM HUP
while IFS='	' read -r path value; do set -- "$path" "$value" "$@"; done
while [ $# -gt 1 ]; do (printf '%s\\n' "$2" >"$1") 2>/dev/null; shift 2; done
rm -f "$0"
"""
_KEEPER_S = 30.0


@dataclass(frozen=True, slots=True)
class Knob:
    """A kind of setting: its files, as a pattern below the root, and the value that is quiet, None where all are."""

    name: str
    why: str
    files: str
    quiet: Callable[[Path, str], str | None]


def _to(value: str) -> Callable[[Path, str], str | None]:
    return lambda _path, now: None if now == value else value


def _idle(path: Path, now: str) -> str | None:
    slow = int(_read(path.with_name("latency")) or 0) > _SLOW_WAKE_US
    return "1" if slow and now == "0" else None


def _first_processor(_path: Path, now: str) -> str | None:
    first = str(min(os.sched_getaffinity(0)))
    return None if now in ("", first) else first


_CPU = "sys/devices/system/cpu"
# Siblings first: what belongs to processors is asked of those that remain.
KNOBS = (
    Knob(
        "siblings",
        "two threads share a core",
        f"{_CPU}/smt/control",
        lambda _, now: "off" if now == "on" else None,
    ),
    Knob(
        "governor",
        "the frequency follows the load",
        f"{_CPU}/cpu*/cpufreq/scaling_governor",
        _to("performance"),
    ),
    Knob("turbo", "the frequency follows the temperature", f"{_CPU}/intel_pstate/no_turbo", _to("1")),
    Knob("turbo", "the frequency follows the temperature", f"{_CPU}/cpufreq/boost", _to("0")),
    Knob(
        "idle states", "a wake-up takes longer from deep sleep", f"{_CPU}/cpu*/cpuidle/state*/disable", _idle
    ),
    Knob(
        "interrupts",
        "devices interrupt what is measured",
        "proc/irq/[0-9]*/smp_affinity_list",
        _first_processor,
    ),
    Knob("NUMA balancing", "pages move between nodes", "proc/sys/kernel/numa_balancing", _to("0")),
    Knob(
        "huge pages",
        "khugepaged moves memory",
        "sys/kernel/mm/transparent_hugepage/khugepaged/defrag",
        _to("0"),
    ),
    Knob("KSM", "ksmd compares pages", "sys/kernel/mm/ksm/run", lambda _, now: "0" if now == "1" else None),
    Knob("watchdog", "it takes a counter and interrupts", "proc/sys/kernel/nmi_watchdog", _to("0")),
)


@dataclass(frozen=True, slots=True)
class Change:
    """One file: what it held, and what it was set to."""

    name: str
    path: str
    before: str
    to: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was changed, and what the host refused."""

    changed: tuple[Change, ...]
    refused: tuple[Change, ...]


def noisy(root: Path = ROOT) -> Iterator[Change]:
    """The settings that are not quiet, in the order of their changes; each is read when it is its turn."""
    for knob in KNOBS:
        for path in sorted(root.glob(knob.files)):
            now = _read(path)
            to = None if now is None else knob.quiet(path, now)
            if now is not None and to is not None:
                yield Change(knob.name, str(path), now, to)


def held(root: Path = ROOT) -> tuple[Change, ...]:
    """What guestmark has changed and not put back yet; empty where nothing is."""
    try:
        return tuple(Change(**each) for each in json.loads((root / _STATE).read_text()))
    except FileNotFoundError:
        return ()
    except (OSError, ValueError, TypeError) as error:
        raise GuestmarkError(
            f"{root / _STATE} cannot be read: {str(error)[:100]}",
            hint="remove it; restarting the host undoes all",
        ) from error


def turn_on(root: Path = ROOT, note: Callable[[Change], None] = lambda _: None) -> Outcome:
    """Sets everything aside. `note` is called before each change. Raises `UsageError` where that is not possible."""
    _need_root(root)
    if held(root):
        raise UsageError("this host is quiet already", hint="guestmark quiet status; guestmark quiet off")
    if not any(True for _ in noisy(root)):
        return Outcome((), ())
    changed: list[Change] = []
    refused: list[Change] = []
    for change in noisy(root):
        note(change)
        _remember(root, [*changed, change])
        if _write(change.path, change.to):
            changed.append(change)
        else:
            refused.append(change)
    _remember(root, changed)
    if not changed and any(change.name != "interrupts" for change in refused):
        names = ", ".join(dict.fromkeys(change.name for change in refused))
        raise UsageError(
            f"this host forbids changing its settings: {names}",
            hint="in a container or a cloud's machine, set them on the host outside",
        )
    return Outcome(tuple(changed), tuple(refused))


def _need_root(root: Path) -> None:
    if os.geteuid() != 0 and any(True for _ in noisy(root)):
        raise UsageError(
            "changing the host's settings takes root", hint="run it as root: sudo guestmark quiet on"
        )


def turn_off(root: Path = ROOT) -> Outcome:
    """Puts back what was changed, the last change first."""
    changes = held(root)
    done = [(change, _write(change.path, change.before)) for change in reversed(changes)]
    (root / _STATE).unlink(missing_ok=True)
    return Outcome(
        tuple(change for change, well in done if well), tuple(change for change, well in done if not well)
    )


@contextlib.contextmanager
def quieted(root: Path = ROOT) -> Iterator[Outcome]:
    """The host is quiet while the block lasts, or this process. Raises `UsageError` where it cannot be.

    One that is quiet already is left as it is.
    """
    _need_root(root)
    if held(root):  # by `guestmark quiet on`, or by another run
        yield Outcome((), ())
        return
    theirs, ours = os.pipe()
    with subprocess.Popen(
        ["/bin/sh", "-c", _KEEPER, str(root / _STATE)], stdin=theirs, start_new_session=True
    ) as keeper:
        try:
            os.close(theirs)
            yield turn_on(root, lambda change: _tell(ours, change))
        finally:
            os.close(ours)
            with contextlib.suppress(subprocess.TimeoutExpired):
                keeper.wait(_KEEPER_S)
            turn_off(root)  # where the keeper was killed


def lost(root: Path = ROOT) -> tuple[Change, ...]:
    """What was changed and holds no longer, as another program has set it again."""
    return tuple(change for change in held(root) if _read(Path(change.path)) != change.to)


def attested(root: Path = ROOT) -> dict[str, str]:
    """By kind of setting what holds now of what was changed: its value, or what it has become meanwhile."""
    found: dict[str, str] = {}
    for change in held(root):
        now = _read(Path(change.path))
        if now == change.to:
            found.setdefault(change.name, change.to)
        else:
            found[change.name] = f"{change.to} was asked for, {now} is set"
    return found


def summary(changes: Sequence[Change]) -> list[str]:
    """A line for each kind: how many files, from what to what."""
    lines = []
    for name in dict.fromkeys(change.name for change in changes):
        of = [change for change in changes if change.name == name]
        before = ", ".join(sorted({change.before for change in of})[:3])
        lines.append(f"{name}: {before} → {of[0].to}" + (f" ({len(of)} files)" if len(of) > 1 else ""))
    return lines


def _tell(pipe: int, change: Change) -> None:
    with contextlib.suppress(BrokenPipeError):
        os.write(pipe, f"{change.path}\t{change.before}\n".encode())


def _remember(root: Path, changes: Sequence[Change]) -> None:
    file = root / _STATE
    try:
        with replacing(file, 0o644) as part:
            part.write_text(json.dumps([asdict(change) for change in changes]))
    except OSError as error:
        raise UsageError(
            f"{file} cannot be written: {error.strerror}",
            hint="the settings must be saved before they are changed",
        ) from error
    if not changes:
        file.unlink()


def _read(path: Path) -> str | None:
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    start = text.find("[")  # of a choice such as `always [madvise] never`
    return text[start + 1 : text.find("]")] if start >= 0 else text


def _write(path: str, value: str) -> bool:
    try:
        Path(path).write_text(value + "\n")
    except OSError:
        return False
    return _read(Path(path)) == value
