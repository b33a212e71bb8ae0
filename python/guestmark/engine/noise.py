"""Records of other activity on the host while a trial was measured.

The kernel's counters are read before and after the trial, which takes well under a millisecond; nothing runs in
between. What a host cannot report is absent from the result, never zero.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from guestmark.core import procfs
from guestmark.core.machine_facts import PlacementFacts
from guestmark.core.placement import parse_processor_list
from guestmark.platforms.base import Machine

_PSI = ("cpu", "io", "memory")
# At most this many threads are read, so that reading stays quick.
_MAX_THREADS = 256
# The frequency of at most this many processors is read, as some kernels answer slowly.
_MAX_PROCESSORS = 8
# Ticks per second of the kernel's counters.
_TICKS = os.sysconf("SC_CLK_TCK")
# utime and stime of a process are each cut to whole ticks, so smaller differences mean nothing.
_COARSE_S = 3 / _TICKS


class _ThreadTime(NamedTuple):
    """A living thread: its process, the nanoseconds it has run, and whether it may run on the machine's processors."""

    pid: int
    ns: int
    here: bool


class _OwnTime(NamedTuple):
    """The processor time of this process and its descendants.

    `whole` has the ticks of each process with all its threads, living and ended, if it may run on the machine's
    processors. `ended` has the ticks of each process's children that have ended.
    """

    threads: Mapping[str, _ThreadTime]
    whole: Mapping[int, int]
    ended: Mapping[int, int]


_NO_TIME = _OwnTime({}, {}, {})


class NoiseRecorder:
    """Records host noise between `start` and `stop`, or inside a `with` block if it was given the measured machine.

    The result is flat. Keys named as in `guestmark.stats.THRESHOLDS` are used to flag blocks: shares
    of the elapsed time (`psi_cpu_some`, `psi_io_full`, `psi_memory_some`, `steal` of all processors' time,
    `run_queue_delay` summed over the hypervisor's threads), the relative `frequency_drop`, and the counts
    `throttled` and `swapped_pages`. The raw figures stand beside them with their unit in the name.

    If the machine's processors are known (`machine_processors`), `foreign_s` is the time that other programs ran on
    them: what the kernel counted as busy there, less what this process and its descendants used there. The kernel
    counts in steps of 10 ms, so only the sum over trials means something; in one short trial it may be negative.
    """

    def __init__(self, machine: Machine | None = None, *, root: Path = Path("/")) -> None:
        self._machine = machine
        self._root = root  # a test's copy of /proc and /sys
        self._pids: tuple[int, ...] = ()
        self._processors: frozenset[int] = frozenset()
        self._reported_s = 0.0
        self._before: dict[str, Any] | None = None
        self._result: dict[str, Any] = {}

    def __enter__(self) -> NoiseRecorder:
        pids: tuple[int, ...] = ()
        if self._machine is not None and (pid := self._machine.vmm_pid) is not None:
            pids = (pid,)
        self.start(pids, self._processors)
        return self

    def place_machine(self, placed: PlacementFacts | None) -> None:
        """Set the machine's processors before recording begins; cells of older plans have no placement."""
        if placed is not None:
            self._processors = frozenset(parse_processor_list(placed.machine))

    def add_reported_time(self, seconds: float) -> None:
        """Add the processor time of the workload's programs, which end before the kernel's counters are read again."""
        self._reported_s = seconds

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self, pids: Iterable[int] = (), processors: Collection[int] = ()) -> None:
        """Begin recording on the machine's `processors`.

        `pids` are the hypervisor's processes, whose threads' waits on run queues are recorded.
        """
        self._pids = tuple(pids)
        self._processors = frozenset(processors)
        self._result = {}
        self._before = self._read_host_counters()

    def stop(self) -> dict[str, Any]:
        """End recording and return what happened since `start`; empty if nothing was started."""
        if self._before is not None:
            after = self._read_host_counters()
            self._result = _compute_noise(self._before, after)
            if self._processors:
                self._result |= _compute_foreign_time(self._before, after, self._processors, self._reported_s)
            self._before = None
        return self._result

    def result(self) -> dict[str, Any]:
        """Return the result of the last recording; empty until it has ended."""
        return self._result

    def _read_host_counters(self) -> dict[str, Any]:
        root = self._root
        return {
            "time": time.monotonic(),
            "psi": {name: _read_pressure(f"{root}/proc/pressure/{name}") for name in _PSI},
            "threads": _read_thread_waits(root / "proc", self._pids),
            "stat": _read_stat(root / "proc/stat"),
            "swap": _read_counts(root / "proc/vmstat", ("pswpin", "pswpout")),
            "throttled": _read_throttle_count(root / "sys/devices/system/cpu"),
            "mhz": _read_frequency_mhz(root),
            "load": _read_load_average(root / "proc/loadavg"),
            "own": _read_own_time(root / "proc", self._processors) if self._processors else _NO_TIME,
            "busy": _read_busy_ticks(root / "proc/stat", self._processors),
        }


def _read_pressure(file: str) -> dict[str, int]:
    """Return microseconds of stall so far, by `some` and `full`."""
    found = {}
    for line in procfs.read_text(file).splitlines():
        kind, _, rest = line.partition(" ")
        with contextlib.suppress(ValueError):
            found[kind] = int(rest.rpartition("total=")[2])
    return found


def _read_thread_waits(proc: Path, pids: Iterable[int]) -> dict[str, tuple[int, int]]:
    """Return nanoseconds run and waited on a run queue so far, by thread, of these processes and their descendants.

    Descendants count because UML runs its guest's programs in child processes. Fields: Linux,
    Documentation/scheduler/sched-stats.
    """
    found: dict[str, tuple[int, int]] = {}
    known = set(pids)
    waiting = sorted(known)
    while waiting and len(found) < _MAX_THREADS:
        folder = f"{proc}/{waiting.pop()}/task"
        for thread in _list_thread_ids(folder):
            fields = procfs.read_text(f"{folder}/{thread}/schedstat").split()
            if len(fields) >= 2 and fields[0].isdigit() and fields[1].isdigit():
                found[thread] = (int(fields[0]), int(fields[1]))
            children = _read_children(folder, thread)
            waiting += children - known
            known |= children
    return found


def _list_thread_ids(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _read_children(folder: str, thread: str) -> set[int]:
    """Return the ids of the processes that the thread has started and not waited for yet."""
    listed = procfs.read_text(f"{folder}/{thread}/children")
    return {int(pid) for pid in listed.split() if pid.isdigit()}


def _read_own_time(proc: Path, processors: Collection[int]) -> _OwnTime:
    """Read the processor time of this process and its descendants.

    For children that have ended, the kernel keeps one sum per parent, whichever processors they ran on.
    """
    running: dict[str, _ThreadTime] = {}
    whole: dict[int, int] = {}
    ended: dict[int, int] = {}
    known = {os.getpid()}
    waiting = sorted(known)
    while waiting and len(running) < _MAX_THREADS:
        pid = waiting.pop()
        fields = procfs.read_text(f"{proc}/{pid}/stat").rpartition(")")[2].split()
        if len(fields) > 14:
            ended[pid] = int(fields[13]) + int(fields[14])  # cutime and cstime
            if _may_run_on(pid, processors):
                whole[pid] = int(fields[11]) + int(fields[12])  # utime and stime
        folder = f"{proc}/{pid}/task"
        for thread in _list_thread_ids(folder):
            used = procfs.read_text(f"{folder}/{thread}/schedstat").partition(" ")[0]
            if used.isdigit():
                running[thread] = _ThreadTime(pid, int(used), _may_run_on(int(thread), processors))
            children = _read_children(folder, thread)
            waiting += children - known
            known |= children
    return _OwnTime(running, whole, ended)


def _may_run_on(thread: int, processors: Collection[int]) -> bool:
    try:
        return not os.sched_getaffinity(thread).isdisjoint(processors)
    except OSError:
        # The thread has ended.
        return False


def _read_busy_ticks(file: Path, processors: Collection[int]) -> tuple[int, int] | None:
    """Return ticks that tasks ran on these processors, and ticks stolen; None if the kernel does not report them."""
    wanted = {f"cpu{number}" for number in processors}
    ran, stolen, found = 0, 0, False
    for line in procfs.read_text(file).splitlines():
        name, *fields = line.split() or [""]
        if name not in wanted or len(fields) < 8 or not all(map(str.isdigit, fields[:8])):
            continue
        # User, nice and system time; time of a guest's processors is part of user time.
        ran += sum(map(int, fields[:3]))
        stolen += int(fields[7])
        found = True
    return (ran, stolen) if found else None


def _read_stat(file: Path) -> dict[str, int]:
    """Return ticks of all processors together, ticks stolen by the host's own hypervisor, and context switches."""
    found: dict[str, int] = {}
    for line in procfs.read_text(file).splitlines():
        name, *fields = line.split() or [""]
        if name == "cpu" and len(fields) >= 8:
            with contextlib.suppress(ValueError):
                # Guest time is already in user time.
                ticks = [int(field) for field in fields[:8]]
                found |= {"ticks": sum(ticks), "steal": ticks[7]}
        elif name == "ctxt" and fields and fields[0].isdigit():
            found["switches"] = int(fields[0])
    return found


def _read_counts(file: Path, names: tuple[str, ...]) -> dict[str, int]:
    found = {}
    for line in procfs.read_text(file).splitlines():
        name, _, value = line.partition(" ")
        if name in names and value.strip().isdigit():
            found[name] = int(value)
    return found


def _read_throttle_count(folder: Path) -> int | None:
    """Return how often all processors were throttled; None if the kernel does not report it."""
    total, found = 0, False
    for counter in folder.glob("cpu[0-9]*/thermal_throttle/*_throttle_count"):
        text = procfs.read_text(counter).strip()
        if text.isdigit():
            total += int(text)
            found = True
    return total if found else None


def _read_frequency_mhz(root: Path) -> float | None:
    """Return the current frequency in MHz of the fastest processor, which is a busy one."""
    folder = f"{root}/sys/devices/system/cpu"
    found = []
    for number in range(_MAX_PROCESSORS):
        text = procfs.read_text(f"{folder}/cpu{number}/cpufreq/scaling_cur_freq").strip()
        if text.isdigit():
            found.append(int(text) / 1000)
    # Without a frequency driver, as in many guests, /proc/cpuinfo has the nominal frequency at least.
    if not found:
        for line in procfs.read_text(root / "proc/cpuinfo").splitlines():
            if line.startswith("cpu MHz"):
                with contextlib.suppress(ValueError):
                    found.append(float(line.partition(":")[2]))
    return max(found, default=None)


def _read_load_average(file: Path) -> float | None:
    try:
        return float(procfs.read_text(file).split()[0])
    except (IndexError, ValueError):
        return None


def _compute_noise(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """Return the flat result of two readings; what either lacks is absent."""
    elapsed = max(after["time"] - before["time"], 1e-9)
    noise: dict[str, Any] = {"elapsed_s": elapsed}
    for name in _PSI:
        for kind, stalled in _subtract_counters(before["psi"][name], after["psi"][name]).items():
            noise[f"psi_{name}_{kind}_us"] = stalled
            noise[f"psi_{name}_{kind}"] = stalled / 1e6 / elapsed
    _add_thread_waits(noise, before["threads"], after["threads"], elapsed)
    stat = _subtract_counters(before["stat"], after["stat"])
    if "steal" in stat:
        noise["steal_ticks"] = stat["steal"]
        noise["steal"] = stat["steal"] / stat["ticks"] if stat["ticks"] > 0 else 0.0
    if "switches" in stat:
        noise["context_switches"] = stat["switches"]
    if swap := _subtract_counters(before["swap"], after["swap"]):
        noise |= {f"{name}_pages": pages for name, pages in swap.items()}
        noise["swapped_pages"] = sum(swap.values())
    if before["throttled"] is not None and after["throttled"] is not None:
        noise["throttled"] = after["throttled"] - before["throttled"]
    if before["mhz"] and after["mhz"]:
        noise["frequency_mhz"] = [before["mhz"], after["mhz"]]
        # A processor that speeds up, as an idle one does under load, is not noise.
        noise["frequency_drop"] = max(0.0, 1 - after["mhz"] / before["mhz"])
    if after["load"] is not None:
        noise["load_1min"] = after["load"]
    return noise


def _subtract_counters(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    """Return the advance of each counter that is in both readings."""
    return {name: after[name] - before[name] for name in before.keys() & after.keys()}


def _compute_foreign_time(
    before: Mapping[str, Any], after: Mapping[str, Any], processors: Collection[int], reported_s: float
) -> dict[str, Any]:
    """Return the time of other programs and steal on the processors that the machine uses."""
    if before["busy"] is None or after["busy"] is None:
        return {}
    (ran_before, stolen_before), (ran_after, stolen_after) = before["busy"], after["busy"]
    ran, stolen = ran_after - ran_before, stolen_after - stolen_before
    old, new = before["own"], after["own"]
    living_s = sum(_compute_run_s(old, name, thread) for name, thread in new.threads.items() if thread.here)
    ended_s = sum(ticks - old.ended.get(pid, 0) for pid, ticks in new.ended.items()) / _TICKS
    return {
        "machine_processors": len(processors),
        "foreign_s": ran / _TICKS - living_s - _compute_ended_threads_s(old, new) - max(ended_s, reported_s),
        "machine_steal_s": stolen / _TICKS,
    }


def _compute_run_s(old: _OwnTime, name: str, thread: _ThreadTime) -> float:
    ns = thread.ns
    if before := old.threads.get(name):
        ns -= before.ns
    return ns / 1e9


def _compute_ended_threads_s(old: _OwnTime, new: _OwnTime) -> float:
    """Return the seconds of ended threads of living processes, such as QEMU's threads for reads and writes."""
    living: dict[int, float] = {}
    for name, thread in new.threads.items():
        living[thread.pid] = living.get(thread.pid, 0.0) + _compute_run_s(old, name, thread)
    lost = []
    for pid, ticks in new.whole.items():
        seconds = (ticks - old.whole.get(pid, 0)) / _TICKS - living.get(pid, 0.0)
        if seconds > _COARSE_S:
            lost.append(seconds)
    return sum(lost)


def _add_thread_waits(
    noise: dict[str, Any],
    before: Mapping[str, tuple[int, int]],
    after: Mapping[str, tuple[int, int]],
    elapsed: float,
) -> None:
    """Add run and wait times: threads that started in between count from zero, those that ended are lost."""
    if not after:
        return
    ran, waited = 0, 0
    for thread, (run_ns, wait_ns) in after.items():
        earlier_run_ns, earlier_wait_ns = before.get(thread, (0, 0))
        ran += run_ns - earlier_run_ns
        waited += wait_ns - earlier_wait_ns
    noise["vmm_run_s"] = ran / 1e9
    noise["run_queue_delay_s"] = waited / 1e9
    noise["run_queue_delay"] = waited / 1e9 / elapsed
