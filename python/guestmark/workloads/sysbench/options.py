"""sysbench's options, under its own names: each is both a parameter of the workload and a factor of its cells.

Levels are stored as text in the form that sysbench accepts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from guestmark.core.factor import Factor, one_of
from guestmark.core.params import Params, param
from guestmark.core.units import format_size, parse_duration, parse_size
from guestmark.workloads.common.factors import THREADS, parse_count

TESTS = ("cpu", "memory", "threads", "mutex", "fileio")
MODES = ("seqwr", "seqrewr", "seqrd", "rndrd", "rndwr", "rndrw")
_ON = {"on": "on", "true": "on", "1": "on", "off": "off", "false": "off", "0": "off"}
_FLAGS = ("sync", "dsync", "direct")
NO_FLAGS = "none"


@dataclass(frozen=True, slots=True)
class Option:
    """An option of `test`, or of all tests; `parse` returns the canonical text or raises `ValueError`."""

    name: str
    test: str
    help: str
    parse: Callable[[str], str]
    levels: tuple[str, ...] = ()

    @property
    def command_flag(self) -> str:
        """The option on sysbench's command line."""
        return f"--{self.name.replace('_', '-')}"


def _parse_positive(text: str) -> str:
    if parse_count(text) == "0":
        raise ValueError(f"{text!r} must be at least 1")
    return parse_count(text)


def _normalize_size(text: str) -> str:
    return format_size(parse_size(text))


def round_to_whole_seconds(text: str) -> str:
    """Rounds a duration to the nearest whole second, as sysbench requires, but at least one; 0 means no limit."""
    seconds = parse_duration(text)
    return str(max(1, round(seconds))) if seconds else "0"


def _parse_switch(text: str) -> str:
    word = _ON.get(text.strip().lower())
    if word is None:
        raise ValueError(f"{text!r} is neither on nor off")
    return word


def _parse_flags(text: str) -> str:
    words = [word.strip().lower() for word in text.split(",")]
    if words in ([NO_FLAGS], [""]):
        return NO_FLAGS
    for word in words:
        if word not in _FLAGS:
            raise ValueError(f"{text!r} is neither {NO_FLAGS} nor a list of {', '.join(_FLAGS)}")
    return ",".join(flag for flag in _FLAGS if flag in words)


def _parse_ratio(text: str) -> str:
    if not re.fullmatch(r"[0-9]+(\.[0-9]+)?", text.strip(), re.ASCII) or float(text) <= 0:
        raise ValueError(f"{text!r} is not a ratio above 0")
    return text.strip()


OPTIONS = {
    option.name: option
    for option in (
        Option("threads", "", THREADS.help, THREADS.parse, THREADS.levels),
        Option("events", "", "events after which the test ends; 0: no limit", parse_count),
        Option("time", "", "duration after which the test ends, in whole seconds; 0: no limit", round_to_whole_seconds),
        Option("rand_seed", "", "seed of the random numbers; 0: a different one each time", parse_count),
        Option("cpu_max_prime", "cpu", "limit up to which primes are computed", _parse_positive, ("10000", "20000")),
        Option("memory_block_size", "memory", "size of the memory block, e.g. 1K", _normalize_size, ("1K", "1M")),
        Option("memory_total_size", "memory", "bytes to transfer in total, e.g. 10G", _normalize_size),
        Option("memory_scope", "memory", "one block for all threads (global) or one for each (local)",
               one_of("global", "local"), ("global", "local")),
        Option("memory_oper", "memory", "operation on the block", one_of("read", "write", "none"), ("read", "write")),
        Option("memory_access_mode", "memory", "sequential or random accesses", one_of("seq", "rnd"), ("seq", "rnd")),
        Option("thread_yields", "threads", "calls of sched_yield per event", _parse_positive),
        Option("thread_locks", "threads", "number of mutexes for which the threads compete", _parse_positive),
        Option("mutex_num", "mutex", "number of mutexes in the array", _parse_positive),
        Option("mutex_locks", "mutex", "number of locks that each thread takes", _parse_positive),
        Option("mutex_loops", "mutex", "number of empty loops outside the lock", parse_count),
        Option("file_num", "fileio", "number of files", _parse_positive),
        Option("file_total_size", "fileio", "size of all files together, e.g. 6G", _normalize_size),
        Option("file_block_size", "fileio", "bytes of one request, e.g. 16K", _normalize_size, ("4K", "16K")),
        Option("file_test_mode", "fileio", "access pattern: sequential or random, reads or writes",
               one_of(*MODES), MODES),
        Option("file_io_mode", "fileio", "how I/O is done: by read(2) and write(2), libaio or mmap",
               one_of("sync", "async", "mmap"), ("sync", "async", "mmap")),
        Option("file_extra_flags", "fileio", r"flags of open(2): none, or sync, dsync, direct joined by \,",
               _parse_flags, (NO_FLAGS, "direct", "sync")),
        Option("file_fsync_freq", "fileio", "requests between two fsync calls; 0: none", parse_count, ("0", "100")),
        Option("file_fsync_all", "fileio", "call fsync after every write", _parse_switch, ("off", "on")),
        Option("file_fsync_end", "fileio", "call fsync at the end", _parse_switch, ("on", "off")),
        Option("file_fsync_mode", "fileio", "system call that syncs files", one_of("fsync", "fdatasync"),
               ("fsync", "fdatasync")),
        Option("file_merged_requests", "fileio", "largest number of requests to merge; 0: none", parse_count),
        Option("file_rw_ratio", "fileio", "reads per write in the mode rndrw", _parse_ratio),
    )
}  # fmt: skip
# Limits and the seed do not change what is measured, so they are not factors.
_NO_FACTORS = {"events", "time", "rand_seed"}


def _make_factor(option: Option) -> Factor:
    description = option.help
    if option.test:
        description = f"sysbench {option.test}: {option.help}"
    return Factor(option.name, description, option.parse, option.levels)


FACTORS = {
    option.name: _make_factor(option) for option in OPTIONS.values() if option.name not in _NO_FACTORS
} | {THREADS.name: THREADS}


# Default disk size as a multiple of the files' size: room for journal, inodes and a reserve.
_ROOM = 1.15
_GIB = 1 << 30
# The same requests on every platform and in every trial.
_SEED = "1"
# sysbench's defaults for what is measured; spelled out so that a stored plan contains them.
_DEFAULTS: Mapping[str, Mapping[str, str]] = {
    "cpu": {"cpu_max_prime": "10000"},
    "memory": {"memory_block_size": "1K", "memory_total_size": "100G", "memory_scope": "global",
               "memory_oper": "write", "memory_access_mode": "seq"},
    "threads": {"thread_yields": "1000", "thread_locks": "8"},
    "mutex": {"mutex_num": "4096", "mutex_locks": "50000", "mutex_loops": "10000"},
    "fileio": {"file_num": "128", "file_total_size": "2G", "file_block_size": "16K", "file_test_mode": "rndrw",
               "file_io_mode": "sync", "file_extra_flags": "none", "file_fsync_freq": "100", "file_fsync_all": "off",
               "file_fsync_end": "on", "file_fsync_mode": "fsync", "file_merged_requests": "0",
               "file_rw_ratio": "1.5"},
}  # fmt: skip
_END_BY_THEMSELVES = {"memory", "mutex"}


def _format_option(value: object) -> object:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, list):
        return ",".join(str(item) for item in value) or "none"
    return str(value) if isinstance(value, int | float) else value


def _choose_limits(test: str, given: Mapping[str, str]) -> dict[str, str]:
    """Returns the limits: sysbench's 10 seconds, unless another limit is given."""
    if test in _END_BY_THEMSELVES:
        return {"events": "0", "time": given.get("time", "0")}
    limits = {"events": given.get("events", "0"), "time": given.get("time", "0")}
    if limits == {"events": "0", "time": "0"}:
        if given.keys() & limits.keys():
            raise ValueError("without a limit on events or time, the test would never end")
        limits["time"] = "10"
    return limits


class SysbenchParams(Params, frozen=True, kw_only=True, omit_defaults=True):
    """A test, its options except those set by factors, and its disk.

    `host_disk` is the disk of `fileio` on the host: a directory of its own filesystem, or a formatted image that is
    mounted with the same options as in a guest (`loop`, needs root).
    """

    test: Annotated[str, param("sysbench test to run", accepts=Literal[TESTS])]
    options: dict[str, str]
    disks: Annotated[
        list[dict[str, Any]],
        param(
            "disk of `fileio` on the host: a directory or a loop device",
            key="host_disk",
            accepts=Literal["directory", "loop"],
            default="directory",
        ),
    ] = []

    INPUTS: ClassVar = {
        option.name: param(option.help, accepts=str | None, coerce=_format_option, default=None)
        for option in OPTIONS.values()
    }

    @classmethod
    def make(cls, *, test: str, disks: str, **texts: str | None) -> SysbenchParams:
        """Creates the parameters. Raises `ValueError` for options of another test and for an endless test."""
        given: dict[str, str] = {}
        for name, option in OPTIONS.items():
            text = texts[name]
            if text is None:
                continue
            if option.test not in ("", test):
                raise ValueError(f"{name} is an option of the test {option.test}, not of {test}")
            try:
                given[name] = option.parse(text)
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from None
        options = {
            "threads": "1",
            "rand_seed": _SEED,
            **_choose_limits(test, given),
            **_DEFAULTS[test],
            **given,
        }
        if test != "fileio":
            if disks != "directory":
                raise ValueError("host_disk applies to the test fileio only")
            return cls(test=test, options=options)
        size = parse_size(options["file_total_size"]) * _ROOM
        disk = {"role": "target", "host": disks, "size": format_size(-(-round(size) // _GIB) * _GIB)}
        return cls(test=test, options=options, disks=[disk])
