"""Facts about a trial: typed in the code that produces and reads them, flat when stored.

A producer makes a `Fact`, and a reader asks the trial's `Facts` for that same type, so no key is written twice. The
keys under which the fields are stored, and shown as a trial's `attestation` in result documents, are an interface that
must not change: a renamed field keeps its key by `msgspec.field(name=…)`. `core.machine_facts` has the facts of
machines; facts of a single kind of workload are in its package.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, TypeVar

import msgspec


class Facts:
    """The facts of a trial that has ended, including those that this version does not know.

    Equal to facts that are stored in the same way. Not a dataclass, so that it is stored as `kept`.
    """

    __slots__ = ("kept",)
    # Values of builtin types by key, as they are stored and shown in result documents.
    kept: Mapping[str, Any]

    def __init__(self, kept: Mapping[str, Any] | None = None) -> None:
        self.kept = {} if kept is None else kept

    def find_fact(self, kind: type[F], name: str = "") -> F | None:
        """Return the fact of that type, added under that name.

        None if the trial has no such fact, or has it in a form that this version does not know.
        """
        if not self.kept:
            return None
        start = make_key_prefix(name)
        found = {key: self.kept[start + key] for key in list_keys(kind) if start + key in self.kept}
        if not found:
            return None
        try:
            return msgspec.convert(found, kind)
        except msgspec.ValidationError:
            return None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Facts) and self.kept == other.kept

    __hash__ = None  # type: ignore[assignment] # mappings have none

    def __repr__(self) -> str:
        return f"Facts({self.kept!r})"


@functools.cache
def list_keys(kind: type[msgspec.Struct]) -> tuple[str, ...]:
    """Return the keys under which facts of that type are stored."""
    return tuple(known.encode_name for known in msgspec.structs.fields(kind))


def make_key_prefix(name: str) -> str:
    """Return the prefix of the keys of facts that are stored under a name."""
    return f"{name}_" if name else ""


class Fact(msgspec.Struct, omit_defaults=True):
    """The findings of one producer. A field that is None by default is absent while nothing is known about it."""


F = TypeVar("F", bound=Fact)


_DIGEST, _HOST_DIGEST = "binary_sha256", "host_binary_sha256"


class Program(Fact, kw_only=True):
    """A program that was run: its path on the machine and on this host, and the digests of both files."""

    path: str = msgspec.field(name="binary")
    sha256: str = msgspec.field(name=_DIGEST)
    host_path: str = msgspec.field(name="host_binary")  # empty if this host has no such file
    # Empty if it cannot be read.
    host_sha256: str = msgspec.field(name=_HOST_DIGEST)
    # The digest of a large file, which is compared instead.
    xxh3: str | None = msgspec.field(name="binary_xxh3", default=None)


class Build(Fact, kw_only=True):
    """A program that is built differently from this host's: for another architecture, at best from the same source."""

    # `another build: sysbench 1.0.20+ds-5, arm64`.
    said: str = msgspec.field(name="build")
    architecture: str = msgspec.field(name="build_architecture")
    package: str | None = msgspec.field(name="build_package", default=None)
    version: str | None = msgspec.field(name="build_version", default=None)
    host_version: str | None = msgspec.field(name="build_host_version", default=None)
    same_source: bool | None = msgspec.field(name="build_same_source", default=None)


class Mount(Fact, kw_only=True):
    """How a disk was mounted; for the disk under test, this is stored under `TARGET`."""

    # The options in force, as in /proc/mounts.
    options: str | None = msgspec.field(name="mount", default=None)
    unconfirmed: list[str] | None = msgspec.field(name="unconfirmed_options", default=None)
    # Why caches could not be dropped.
    caches: str | None = None


TARGET = "target"


class WorkingDirectory(Fact, kw_only=True):
    """Where a command ran, according to `/proc/self/mountinfo` of a process in that directory."""

    path: str = msgspec.field(name="ran_in")
    mounted_at: str = msgspec.field(name="ran_on_mount")
    filesystem: str = msgspec.field(name="ran_on_filesystem")
    # The device, or the tag of a share.
    source: str = msgspec.field(name="ran_on")
    number: str = msgspec.field(name="ran_on_number")  # `major:minor`
    options: str = msgspec.field(name="ran_on_options")


class Written(Fact, kw_only=True):
    """Bytes that a command without a disk of its own wrote to filesystems on disks, as counted by its kernel.

    These are `write_bytes` in `/proc/PID/io`, which excludes filesystems in memory.
    """

    # In the run that wrote the least.
    least: int = msgspec.field(name="least_written_bytes")


class Traffic(Fact, kw_only=True):
    """What reached the disk under test while the workload ran, in bytes; None for a directory of this host."""

    wrote: bool = msgspec.field(name="disk_wrote")
    written: int | None = msgspec.field(name="disk_written_bytes", default=None)
    read: int | None = msgspec.field(name="disk_read_bytes", default=None)


class StoredDisk(msgspec.Struct, kw_only=True):
    """Where a disk's image or directory is."""

    location: str
    filesystem: str
    # Whether it is in memory, so that a power cut loses it, flushed or not.
    in_memory: bool


class Storage(Fact, kw_only=True):
    """Where a trial's disks were, by the names of the disks."""

    disks: dict[str, StoredDisk] = msgspec.field(name="storage")


class Durability(StrEnum):
    """How certain it is that flushed data on a machine survives a power cut."""

    # No crash state of a log of writes loses anything, and nothing below the log is volatile.
    PROVEN = "proven"
    # As `PROVEN`, but only of what was synced; the workload left more on the disk than that.
    SYNCED_PART_PROVEN = "synced part proven"
    # This host's kernel was asked to flush.
    REACHED = "reached the kernel"
    # Only the hypervisor's own counter shows that it was flushed.
    CLAIMED = "claimed"
    # Flushes are dropped: a crash state without what was acknowledged, or a layer that drops them.
    LOST = "lost"
    # The data is in memory, and a power cut loses it, flushed or not.
    MEMORY = "in memory"
    NOTHING = "nothing flushed"  # no flush was asked for
    # The check of a program that acknowledges nothing passes after every cut.
    CONSISTENT = "consistent"
    BROKEN = "broken"  # the check fails after a cut
    UNKNOWN = "unknown"

    @property
    def is_loss(self) -> bool:
        """True if a power cut was found to cost data."""
        return self in {Durability.LOST, Durability.BROKEN}

    @property
    def is_about_consistency(self) -> bool:
        """True for a program that acknowledges nothing, whose check only judges whether the disk can be used."""
        return self in {Durability.CONSISTENT, Durability.BROKEN}


class Reached(StrEnum):
    """Whether flushed data on a machine has reached the host."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"


class Flushes(Fact, kw_only=True):
    """Whether flushed data on the machine has reached the host."""

    reached: str = msgspec.field(name="flushes_reached_host")  # one of `Reached`
    why: str = msgspec.field(name="flushes_why")
    # Whether it is in the host's memory, so that a power cut loses it, flushed or not.
    in_memory: bool = msgspec.field(name="location_in_memory")
    # One of `Durability`; older trials only record what has reached the host.
    durability: str | None = None

    @property
    def durability_word(self) -> Durability:
        """The durability that is known without any proof."""
        if self.durability in set(Durability):
            return Durability(self.durability)
        if self.in_memory:
            return Durability.MEMORY
        return _read_version_0_1(self.reached, self.why)


def _read_version_0_1(reached: str, why: str) -> Durability:
    """Return the durability from the single line that trials of version 0.1 recorded."""
    if reached == Reached.YES:
        return Durability.REACHED if "strace" in why or "host" in why else Durability.CLAIMED
    if reached == Reached.NO:
        return Durability.NOTHING if "sent no flush" in why else Durability.LOST
    return Durability.UNKNOWN


class Control(msgspec.Struct, kw_only=True):
    """A case in which a proof must find a loss; otherwise the proof means nothing."""

    name: str
    states: int
    losing: int
    # False if nothing can be lost in this way.
    applies: bool = True

    @property
    def is_caught(self) -> bool:
        """Whether the planted loss was detected, as it must be."""
        return self.losing > 0 or not self.applies


class Coverage(msgspec.Struct, kw_only=True, frozen=True):
    """Which crash states of a log were examined, and how many there are."""

    # How many of all `acknowledgements` had the worst state after them judged.
    worst: int
    acknowledgements: int
    # How many of all `requests` had a cut right after them judged, with everything before it on the disk.
    cuts: int
    requests: int
    random: int
    seed: int
    # How many of the writes that a disk may leave half done, `tearable`, were judged half done.
    torn: int = 0
    tearable: int = 0

    def __str__(self) -> str:
        worst = _format_share(self.worst, self.acknowledgements, "acknowledgements")
        cuts = _format_share(self.cuts, self.requests, "cuts")
        parts = [worst, cuts]
        if self.tearable:
            parts.append(_format_share(self.torn, self.tearable, "torn writes"))
        return f"{', '.join(parts)}, {self.random} random states"


def _format_share(some: int, whole: int, what: str) -> str:
    if some == whole:
        return f"all {whole:,} {what}"
    return f"{some:,} of {whole:,} {what}"


class SecondLog(msgspec.Struct, kw_only=True, frozen=True):
    """The result of a second log of writes, recorded for the same disk on a fresh machine."""

    word: str  # one of `Durability`
    states: int
    losing: int
    why: str
    kept: str = ""


class Reason(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """What a check reported for `states` crash states that failed, or were not judged, in the same way.

    The other fields describe the first of them.
    """

    said: str
    states: int
    after: int  # requests before the cut
    # Which of the writes in flight are on the disk, in a sentence.
    survival: str
    judged: bool = True
    status: int | None = None
    # The last lines of its standard output.
    out: tuple[str, ...] = ()
    err: tuple[str, ...] = ()  # and of its standard error


class Untorn(msgspec.Struct, frozen=True):
    """How many of the judged states have no torn write, and how many of these fail.

    `flushed` of the failing ones hold exactly what had been flushed when a record was acknowledged.
    """

    states: int
    losing: int
    flushed: int


class LossCause(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """The fewest files that had to differ for a check to fail, and the calls that left them unsynced, in words."""

    files: list[str]
    calls: list[str] = []


class Explanation(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """Why a check failed, found by experiment: the fewest files that had to differ from what the program left."""

    said: str  # what the check printed, each time
    # The difference in words: `refs/heads/master is missing`; empty if none was found that is enough.
    files: list[str]
    # The operations that left them unsynced, in words.
    calls: list[str] = []
    # The calls after which a sync was added to try it: `rename refs/heads/master`.
    added: list[str] = []
    # Whether a sync was added before each acknowledgement as well.
    each: bool = False
    # Whether a sync was added after every call that changes the disk.
    every: bool = False
    # What was still lost with fewer syncs added, in the order in which it was found.
    further: list[LossCause] = []
    # Settings of a server that were reset to their defaults, instead of adding a sync.
    without: list[str] = []
    # Crash states that were judged with these syncs.
    states: int = 0
    losing: int = 0  # how many of them fail
    untorn: Untorn | None = None


class Unsynced(msgspec.Struct, frozen=True):
    """A file, and how many of its bytes no sync of the program covered; 0 if only its name was not covered."""

    path: str
    bytes: int


class Proven(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The result of judging the crash states of a log of writes."""

    word: Durability
    why: str
    # How records were made durable.
    method: str
    acknowledged: int  # records
    states: int
    # States that lose an acknowledged record.
    losing: int
    # States that need repairs beyond a journal's replay.
    repaired: int
    controls: list[Control]
    # The layers under the log, topmost first.
    below: list[str]
    writes: int  # requests in the log
    flushes: int
    # Seconds that the machine wrote; judging the states took `judge_s`.
    run_s: float
    judge_s: float
    # States in which the filesystem's own superblock is torn, and records with it; not counted in `losing`.
    torn_superblocks: int = 0
    # Losing states in which the call had returned too early: its data was safe only this many requests later.
    early_states: int = 0
    early_requests: int = 0
    first_loss: str = ""
    first_repair: str = ""
    # Flushes that the hypervisor itself counted.
    counted: int | None = None
    # The log's directory, for `guestmark powercut replay`.
    kept: str = ""
    coverage: Coverage | None = None
    # A loss counts only if a second log shows it too.
    again: SecondLog | None = None
    # Flushes that the guest's kernel counted.
    asked: int | None = None
    # Whether the row's own acknowledgements were judged, instead of guestmark's records.
    of_row: bool = False
    # Whether the program's own syncs were judged; `acknowledged` is then their number.
    syncs: bool = False
    # Whether the program was stopped early, because there is a limit on the syncs, and on their bytes, that are judged.
    syncs_cut_short: bool = False
    # The files that these syncs did not cover, in the order of their names.
    unsynced: list[Unsynced] = []
    # Files that they did not cover and need not, because a database recreates them after a power cut.
    rebuilt: list[Unsynced] = []
    # Why a check failed, the most frequent reason first.
    reasons: list[Reason] = []
    explanation: Explanation | None = None
    # Set only for a check.
    untorn: Untorn | None = None
    # States for which the check never ended or never started; not counted in `states`.
    unjudged: int = 0
    # Why some of the chosen states were not judged.
    stopped: str = ""
    # How often the check ran: once for all states that show it the same files.
    checks: int | None = None
    # Why states were judged one after another instead of in parallel.
    alone: str = ""
    # Whether the check passes when given a line that was never acknowledged; then it checks nothing.
    blind: bool = False


class Proof(Fact, kw_only=True):
    """A proof about a machine's disk."""

    proven: Proven = msgspec.field(name="proof")


class Counted(Fact, kw_only=True):
    """The hypervisor's counters, averaged per iteration, by their names in `platforms.counters`."""

    each: dict[str, float] = msgspec.field(name="counted")


class FailedRuns(Fact, kw_only=True):
    """How many of a trial's measured runs failed, how many were tried, and the message of the first failure."""

    failed: int = msgspec.field(name="failed_runs")
    tried: int = msgspec.field(name="tried_runs")
    reason: str = msgspec.field(name="failed_because")


class MeasuredOn(Fact, kw_only=True):
    """The machine that measured the trial, if several may share a run."""

    machine: str = msgspec.field(name="measured_on")


class SharedMachine(Fact, kw_only=True):
    """The machine of a trial, if other trials of its block ran on it, too."""

    # Which of the block's machines it was; the numbers begin at 1.
    number: int = msgspec.field(name="shared_machine")
    # Which trial on this machine it was, from 1.
    position: int = msgspec.field(name="shared_position")
    # How many trials its start is divided among.
    trials: int = msgspec.field(name="shared_by")
    # Seconds of the start that are part of this trial's duration.
    start_s: float = msgspec.field(name="shared_start_s")


class Around(Fact, kw_only=True):
    """Seconds that the user's commands before and after the measured one took, by name, one value per execution."""

    each: dict[str, list[float]] = msgspec.field(name="around_s")


class IgnoredStatuses(Fact, kw_only=True):
    """How many runs of the command ended with an exit status that means failure and was ignored, by status."""

    each: dict[str, int] = msgspec.field(name="ignored_statuses")


class ShellStart(Fact, kw_only=True):
    """Seconds that an empty shell command took on that machine; they are subtracted from the measured times."""

    wall_s: float = msgspec.field(name="shell_start_s")
    guest_wall_s: float = msgspec.field(name="shell_start_guest_s")
    user_s: float = msgspec.field(name="shell_start_user_s")
    system_s: float = msgspec.field(name="shell_start_system_s")


class ExecCost(Fact, kw_only=True):
    """Seconds that an empty command takes in a machine whose commands are timed from outside.

    `wall_s` is the median of several runs, and is subtracted from the measured times. The true median lies between
    `low_s` and `high_s` with a probability of 95 %.
    """

    wall_s: float = msgspec.field(name="exec_cost_s")
    low_s: float = msgspec.field(name="exec_cost_low_s")
    high_s: float = msgspec.field(name="exec_cost_high_s")

    def describe(self) -> str:
        """Return the median in milliseconds, with its confidence interval."""
        return f"{self.wall_s * 1e3:.3g} ms ({self.low_s * 1e3:.3g} to {self.high_s * 1e3:.3g})"


class Findings:
    """The facts of a trial in progress. The producer of a fact may still complete it after adding it."""

    def __init__(self) -> None:
        self._found: dict[tuple[type[Fact], str], Fact] = {}

    def add(self, fact: F, name: str = "") -> F:
        """Add the fact, replacing an earlier one of its type; `name` distinguishes several of one type."""
        self._found[type(fact), name] = fact
        return fact

    def add_all(self, others: Findings) -> None:
        """Add all facts of another collection."""
        self._found |= others._found

    def facts(self) -> Facts:
        """Return everything known so far, in the form in which it is stored."""
        kept: dict[str, Any] = {}
        for (_, name), fact in self._found.items():
            kept |= {f"{make_key_prefix(name)}{key}": value for key, value in flatten_fact(fact).items()}
        return Facts(kept)


def flatten_fact(fact: Fact) -> dict[str, Any]:
    """Return the fact's fields by their keys, in builtin types."""
    plain: dict[str, Any] = msgspec.to_builtins(fact, str_keys=True)
    return plain


def add_fact(facts: Facts, fact: Fact) -> Facts:
    """Return the facts of an ended trial with one fact added."""
    return Facts({**facts.kept, **flatten_fact(fact)})


def find_machine(facts: Facts) -> str:
    """Return the machine that measured a trial with these facts; empty if there is only one."""
    found = facts.find_fact(MeasuredOn)
    return "" if found is None else found.machine


def list_programs(facts: Facts) -> list[Program]:
    """Return all programs that a trial ran, whatever their names, in the order in which they were found."""
    programs = []
    for key in facts.kept:
        if not key.endswith(_DIGEST) or key.endswith(_HOST_DIGEST):
            continue
        program = facts.find_fact(Program, key.removesuffix(_DIGEST).removesuffix("_"))
        if program is not None:
            programs.append(program)
    return programs
