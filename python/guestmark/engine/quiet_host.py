"""A quiet host: changes to settings that make speed vary (frequencies, idle states, siblings, kernel threads).

Each setting is a file of the kernel. Its value is recorded before it is changed: in a file below /run for
`guestmark quiet off`, and for one run also in the pipe of a keeper process, which restores everything when the run's
process has ended, even if it was killed.
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
from guestmark.core.temporary import replace_file

ROOT = Path("/")
_STATE = "run/guestmark-quiet.json"
# Idle states with a longer exit latency are disabled.
_SLOW_WAKE_US = 10
# Reverts the changes that it reads, the last one first, when its input ends, because the run has ended or was killed.
_KEEPER = """trap '' INT TERM HUP
while IFS='	' read -r path value; do set -- "$path" "$value" "$@"; done
while [ $# -gt 1 ]; do (printf '%s\\n' "$2" >"$1") 2>/dev/null; shift 2; done
rm -f "$0"
"""
_KEEPER_S = 30.0


@dataclass(frozen=True, slots=True)
class HostSetting:
    """A kind of host setting, with the pattern of its files below the root.

    `find_quiet_value` returns the value that a file should have, given its current one; None if that is quiet already.
    """

    name: str
    why: str
    files: str
    find_quiet_value: Callable[[Path, str], str | None]


def _set_always(value: str) -> Callable[[Path, str], str | None]:
    return lambda _path, now: None if now == value else value


def _choose_slow_idle_state(path: Path, now: str) -> str | None:
    slow = int(_read_setting(path.with_name("latency")) or 0) > _SLOW_WAKE_US
    return "1" if slow and now == "0" else None


def _choose_first_processor(_path: Path, now: str) -> str | None:
    first = str(min(os.sched_getaffinity(0)))
    return None if now in ("", first) else first


_CPU = "sys/devices/system/cpu"
# Siblings come first: without them, fewer processors have settings.
HOST_SETTINGS = (
    HostSetting(
        "siblings",
        "two threads share a core",
        f"{_CPU}/smt/control",
        lambda _, now: "off" if now == "on" else None,
    ),
    HostSetting(
        "governor",
        "the frequency follows the load",
        f"{_CPU}/cpu*/cpufreq/scaling_governor",
        _set_always("performance"),
    ),
    HostSetting(
        "turbo", "the frequency follows the temperature", f"{_CPU}/intel_pstate/no_turbo", _set_always("1")
    ),
    HostSetting("turbo", "the frequency follows the temperature", f"{_CPU}/cpufreq/boost", _set_always("0")),
    HostSetting(
        "idle states",
        "waking from deep idle states takes longer",
        f"{_CPU}/cpu*/cpuidle/state*/disable",
        _choose_slow_idle_state,
    ),
    HostSetting(
        "interrupts",
        "devices interrupt what is measured",
        "proc/irq/[0-9]*/smp_affinity_list",
        _choose_first_processor,
    ),
    HostSetting(
        "NUMA balancing", "pages move between nodes", "proc/sys/kernel/numa_balancing", _set_always("0")
    ),
    HostSetting(
        "huge pages",
        "khugepaged moves memory",
        "sys/kernel/mm/transparent_hugepage/khugepaged/defrag",
        _set_always("0"),
    ),
    HostSetting(
        "KSM", "ksmd compares pages", "sys/kernel/mm/ksm/run", lambda _, now: "0" if now == "1" else None
    ),
    HostSetting(
        "watchdog",
        "the NMI watchdog uses a counter and interrupts",
        "proc/sys/kernel/nmi_watchdog",
        _set_always("0"),
    ),
)


@dataclass(frozen=True, slots=True)
class SettingChange:
    """One changed file: its value before, and its new value."""

    name: str
    path: str
    before: str
    to: str


@dataclass(frozen=True, slots=True)
class QuietOutcome:
    """The settings that were changed, and those that the host refused to change."""

    changed: tuple[SettingChange, ...]
    refused: tuple[SettingChange, ...]


def find_noisy_settings(root: Path = ROOT) -> Iterator[SettingChange]:
    """Yield the settings to change, in order; each is read only when it is its turn."""
    for knob in HOST_SETTINGS:
        for path in sorted(root.glob(knob.files)):
            now = _read_setting(path)
            if now is None:
                continue
            to = knob.find_quiet_value(path, now)
            if to is not None:
                yield SettingChange(knob.name, str(path), now, to)


def read_stored_changes(root: Path = ROOT) -> tuple[SettingChange, ...]:
    """Return the settings that guestmark has changed and not restored yet."""
    try:
        return tuple(SettingChange(**each) for each in json.loads((root / _STATE).read_text()))
    except FileNotFoundError:
        return ()
    except (OSError, ValueError, TypeError) as error:
        raise GuestmarkError(
            f"{root / _STATE} cannot be read: {str(error)[:100]}",
            hint="remove it, and restart the host to undo the changes",
        ) from error


def quieten_host(root: Path = ROOT, note: Callable[[SettingChange], None] = lambda _: None) -> QuietOutcome:
    """Change all settings; `note` is called before each change. Raises `UsageError` if that is not possible."""
    _require_root(root)
    if read_stored_changes(root):
        raise UsageError("this host is quiet already", hint="to restore its settings: guestmark quiet off")
    if not _has_noisy_setting(root):
        return QuietOutcome((), ())
    changed: list[SettingChange] = []
    refused: list[SettingChange] = []
    for change in find_noisy_settings(root):
        note(change)
        _store_changes(root, [*changed, change])
        if _write_setting(change.path, change.to):
            changed.append(change)
        else:
            refused.append(change)
    _store_changes(root, changed)
    if not changed and any(change.name != "interrupts" for change in refused):
        names = ", ".join(dict.fromkeys(change.name for change in refused))
        raise UsageError(
            f"this host forbids changing its settings: {names}",
            hint="in a container or a virtual machine, change them on its host",
        )
    return QuietOutcome(tuple(changed), tuple(refused))


def _has_noisy_setting(root: Path) -> bool:
    return next(find_noisy_settings(root), None) is not None


def _require_root(root: Path) -> None:
    if os.geteuid() != 0 and _has_noisy_setting(root):
        raise UsageError(
            "changing the host's settings needs root", hint="run it as root: sudo guestmark quiet on"
        )


def restore_host(root: Path = ROOT) -> QuietOutcome:
    """Restore the settings that were changed, the last one first."""
    restored: list[SettingChange] = []
    refused: list[SettingChange] = []
    for change in reversed(read_stored_changes(root)):
        if _write_setting(change.path, change.before):
            restored.append(change)
        else:
            refused.append(change)
    (root / _STATE).unlink(missing_ok=True)
    return QuietOutcome(tuple(restored), tuple(refused))


@contextlib.contextmanager
def quiet_host(root: Path = ROOT) -> Iterator[QuietOutcome]:
    """Keep the host quiet inside the block, or as long as this process lives. Raises `UsageError` if that fails.

    A host that is quiet already is left as it is.
    """
    _require_root(root)
    # Made quiet by `guestmark quiet on` or by another run, which will restore it.
    if read_stored_changes(root):
        yield QuietOutcome((), ())
        return
    theirs, ours = os.pipe()
    with subprocess.Popen(
        ["/bin/sh", "-c", _KEEPER, str(root / _STATE)], stdin=theirs, start_new_session=True
    ) as keeper:
        try:
            os.close(theirs)
            yield quieten_host(root, lambda change: _tell_keeper(ours, change))
        finally:
            os.close(ours)
            with contextlib.suppress(subprocess.TimeoutExpired):
                keeper.wait(_KEEPER_S)
            # The keeper has done so already, unless it was killed.
            restore_host(root)


def find_undone_changes(root: Path = ROOT) -> tuple[SettingChange, ...]:
    """Return the changes that another program has undone."""
    undone = []
    for change in read_stored_changes(root):
        if _read_setting(Path(change.path)) != change.to:
            undone.append(change)
    return tuple(undone)


def attest_settings(root: Path = ROOT) -> dict[str, str]:
    """Return, by kind of setting, the value that was set, or a sentence if it has changed since."""
    found: dict[str, str] = {}
    for change in read_stored_changes(root):
        now = _read_setting(Path(change.path))
        if now == change.to:
            found.setdefault(change.name, change.to)
        else:
            found[change.name] = f"{change.to} was set, but now it is {now}"
    return found


def summarize_changes(changes: Sequence[SettingChange]) -> list[str]:
    """Return a line for each kind of setting: from which values to which, and in how many files."""
    by_name: dict[str, list[SettingChange]] = {}
    for change in changes:
        by_name.setdefault(change.name, []).append(change)
    lines = []
    for name, of in by_name.items():
        before = ", ".join(sorted({change.before for change in of})[:3])
        line = f"{name}: {before} → {of[0].to}"
        if len(of) > 1:
            line += f" ({len(of)} files)"
        lines.append(line)
    return lines


def _tell_keeper(pipe: int, change: SettingChange) -> None:
    with contextlib.suppress(BrokenPipeError):
        os.write(pipe, f"{change.path}\t{change.before}\n".encode())


def _store_changes(root: Path, changes: Sequence[SettingChange]) -> None:
    file = root / _STATE
    try:
        with replace_file(file, 0o644) as part:
            part.write_text(json.dumps([asdict(change) for change in changes]))
    except OSError as error:
        raise UsageError(
            f"{file} cannot be written: {error.strerror}",
            hint="the settings must be saved before they are changed",
        ) from error
    if not changes:
        file.unlink()


def _read_setting(path: Path) -> str | None:
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    # The kernel marks the chosen word: `always [madvise] never`.
    start = text.find("[")
    if start < 0:
        return text
    return text[start + 1 : text.find("]")]


def _write_setting(path: str, value: str) -> bool:
    try:
        Path(path).write_text(value + "\n")
    except OSError:
        return False
    return _read_setting(Path(path)) == value
