"""What is found out about a trial: typed where it is made and where it is read, flat where it is kept.

A producer makes a `Fact`, and a reader asks the trial's `Facts` for that same type: no key is written twice. The keys
under which the fields are stored, and shown as a trial's `attestation` in result documents, are an interface that
stays: a field that is renamed keeps its key by `msgspec.field(name=…)`. `core.machine_facts` has the facts of machines;
those that only one kind of workload finds out are in its package.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, TypeVar

import msgspec


class Facts:
    """The facts of a trial that has ended. Those that this version does not know are kept as well.

    Equal to facts that are kept as the same. Not a dataclass, so that it is stored as what is kept.
    """

    __slots__ = ("kept",)
    # By key, in builtin types: as it is stored, and shown in result documents.
    kept: Mapping[str, Any]

    def __init__(self, kept: Mapping[str, Any] | None = None) -> None:
        self.kept = {} if kept is None else kept

    def find_fact(self, kind: type[F], name: str = "") -> F | None:
        """The facts of that type, added under that name.

        None when the trial has none of them, or has them in a form that this version does not know.
        """
        start = key_prefix(name)
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
    """The keys under which facts of that type are kept."""
    return tuple(known.encode_name for known in msgspec.structs.fields(kind))


def key_prefix(name: str) -> str:
    """What stands before the keys of facts that are kept under a name."""
    return f"{name}_" if name else ""


class Fact(msgspec.Struct, omit_defaults=True):
    """What one producer found out. A field that is None by default is absent while nothing is known of it."""


F = TypeVar("F", bound=Fact)


_DIGEST, _HOST_DIGEST = "binary_sha256", "host_binary_sha256"


class Program(Fact, kw_only=True):
    """A program that was run: where it is on the machine and on this host, and the digests of both files."""

    path: str = msgspec.field(name="binary")
    sha256: str = msgspec.field(name=_DIGEST)
    host_path: str = msgspec.field(name="host_binary")  # empty when it is not there
    # Empty when it cannot be read.
    host_sha256: str = msgspec.field(name=_HOST_DIGEST)
    # Of a large file, compared instead.
    xxh3: str | None = msgspec.field(name="binary_xxh3", default=None)


class Build(Fact, kw_only=True):
    """A program whose build is another than this host's: for another architecture, at best from the same source."""

    # `another build: sysbench 1.0.20+ds-5, arm64`.
    said: str = msgspec.field(name="build")
    architecture: str = msgspec.field(name="build_architecture")
    package: str | None = msgspec.field(name="build_package", default=None)
    version: str | None = msgspec.field(name="build_version", default=None)
    host_version: str | None = msgspec.field(name="build_host_version", default=None)
    same_source: bool | None = msgspec.field(name="build_same_source", default=None)


class Mount(Fact, kw_only=True):
    """How a disk was mounted in the end; of the disk under test it is kept as `TARGET`."""

    # In force, as in /proc/mounts.
    options: str | None = msgspec.field(name="mount", default=None)
    unconfirmed: list[str] | None = msgspec.field(name="unconfirmed_options", default=None)
    # Why they could not be dropped.
    caches: str | None = None


TARGET = "target"


class WorkingDirectory(Fact, kw_only=True):
    """Where a command ran, as its machine's kernel says in `/proc/self/mountinfo` to a process that works there."""

    path: str = msgspec.field(name="ran_in")
    mounted_at: str = msgspec.field(name="ran_on_mount")
    filesystem: str = msgspec.field(name="ran_on_filesystem")
    # The device; of a share its tag.
    source: str = msgspec.field(name="ran_on")
    number: str = msgspec.field(name="ran_on_number")  # `major:minor`
    options: str = msgspec.field(name="ran_on_options")


class Traffic(Fact, kw_only=True):
    """What reached the disk under test while the workload ran; bytes, None for a directory of this host."""

    wrote: bool = msgspec.field(name="disk_wrote")
    written: int | None = msgspec.field(name="disk_written_bytes", default=None)
    read: int | None = msgspec.field(name="disk_read_bytes", default=None)


class StoredDisk(msgspec.Struct, kw_only=True):
    """Where a disk's image or directory is."""

    location: str
    filesystem: str
    # Lost with the power, flushed or not.
    in_memory: bool


class Storage(Fact, kw_only=True):
    """Where a trial's disks were, by their names."""

    disks: dict[str, StoredDisk] = msgspec.field(name="storage")


class Durability(StrEnum):
    """How sure it is that what was flushed on a machine survives a power cut."""

    # No crash state of a log of writes loses anything, and nothing below the log is volatile.
    PROVEN = "proven"
    # Likewise, of what was synced; the workload left more on the disk than that.
    PART = "synced part proven"
    # This host's kernel was asked to flush.
    REACHED = "reached the kernel"
    # The hypervisor's own counter says so, and nothing else.
    CLAIMED = "claimed"
    # Flushes are dropped: a crash state without what was acknowledged, or a layer that drops them.
    LOST = "lost"
    # Flushed or not, it is gone with the power.
    MEMORY = "in memory"
    NOTHING = "nothing flushed"  # no flush was asked for
    # The check of a program that acknowledges nothing passes after every cut.
    CONSISTENT = "consistent"
    BROKEN = "broken"  # it fails after one
    UNKNOWN = "unknown"


class Reached(StrEnum):
    """Whether what was flushed on a machine has reached the host."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"


class Flushes(Fact, kw_only=True):
    """Whether what was flushed on the machine has reached the host."""

    reached: str = msgspec.field(name="flushes_reached_host")  # one of `Reached`
    why: str = msgspec.field(name="flushes_why")
    # Lost with the host's power, flushed or not.
    in_memory: bool = msgspec.field(name="location_in_memory")
    # One of `Durability`; older trials have only what has reached the host.
    durability: str | None = None

    @property
    def durability_word(self) -> Durability:
        """How sure it is, without any proof."""
        if self.durability in set(Durability):
            return Durability(self.durability)
        if self.in_memory:
            return Durability.MEMORY
        return _read_version_0_1(self.reached, self.why)


def _read_version_0_1(reached: str, why: str) -> Durability:
    """What its trials say in a line alone."""
    if reached == Reached.YES:
        return Durability.REACHED if "strace" in why or "host" in why else Durability.CLAIMED
    if reached == Reached.NO:
        return Durability.NOTHING if "sent no flush" in why else Durability.LOST
    return Durability.UNKNOWN


class Control(msgspec.Struct, kw_only=True):
    """A case in which a proof has to find a loss, or it proves nothing."""

    name: str
    states: int
    losing: int
    # False: nothing can be lost in this way.
    applies: bool = True

    @property
    def caught(self) -> bool:
        """Whether it did its part."""
        return self.losing > 0 or not self.applies


class Coverage(msgspec.Struct, kw_only=True, frozen=True):
    """Which crash states of a log were looked at, and of how many there are."""

    # Acknowledgements after which the worst state was judged, of all `acknowledgements`.
    worst: int
    acknowledgements: int
    # Cuts between two requests, all before it on the disk, of all `requests`.
    cuts: int
    requests: int
    random: int
    seed: int
    # Writes of which half is on the disk, of all that a disk may leave half done, `tearable`.
    torn: int = 0
    tearable: int = 0

    def __str__(self) -> str:
        worst = _of(self.worst, self.acknowledgements, "acknowledgements")
        cuts = _of(self.cuts, self.requests, "cuts")
        torn = f", {_of(self.torn, self.tearable, 'torn writes')}" if self.tearable else ""
        return f"{worst}, {cuts}{torn}, {self.random} random states"


def _of(some: int, whole: int, what: str) -> str:
    return f"all {whole:,} {what}" if some == whole else f"{some:,} of {whole:,} {what}"


class Again(msgspec.Struct, kw_only=True, frozen=True):
    """What a second log of writes, of a machine of its own, has shown of the same disk."""

    word: str  # one of `Durability`
    states: int
    losing: int
    why: str
    kept: str = ""


class Reason(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """What a check said of `states` that it failed on, or did not judge, in the same way; the rest is of the first."""

    said: str
    states: int
    after: int  # requests before the cut
    # In a sentence: what of the writes in flight is on the disk.
    survival: str
    judged: bool = True
    status: int | None = None
    # The last lines of its standard output.
    out: tuple[str, ...] = ()
    err: tuple[str, ...] = ()  # and of its standard error


class Explanation(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """Why a check failed, by experiment: the fewest files that had to differ from what the program left."""

    said: str  # by the check, each time
    # In words: `refs/heads/master is missing`.
    files: list[str]
    # That left them unsynced, in words.
    calls: list[str] = []
    # After which calls a sync was added, to try that: `rename refs/heads/master`.
    added: list[str] = []
    # Crash states that were judged with these syncs.
    states: int = 0
    losing: int = 0  # of them fail


class Unsynced(msgspec.Struct, frozen=True):
    """A file that a program left on the disk with `bytes` that none of its syncs covered; 0: only its name was not."""

    path: str
    bytes: int


class Proven(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What crash states of a log of writes have shown."""

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
    # How long the machine wrote, and how long states were judged.
    run_s: float
    judge_s: float
    first_loss: str = ""
    first_repair: str = ""
    # Flushes by the hypervisor's own account.
    counted: int | None = None
    # Directory of the log, for `guestmark powercut replay`.
    kept: str = ""
    coverage: Coverage | None = None
    # A loss is one only if a second log has it, too.
    again: Again | None = None
    # Flushes by the guest's kernel.
    asked: int | None = None
    # What was judged is what the row itself acknowledged, not records of guestmark's.
    of_row: bool = False
    # What was judged are the program's own syncs, of which `acknowledged` is the number.
    syncs: bool = False
    # What these syncs did not cover, files in the order of their names.
    unsynced: list[Unsynced] = []
    # Of a check: why it failed, the commonest first.
    reasons: list[Reason] = []
    explanation: Explanation | None = None
    # States at which the check came to no end, or to no beginning; not among `states`.
    unjudged: int = 0
    # Why not all states that were chosen were judged.
    stopped: str = ""
    # How often the check was run: once for states in which it sees the same files.
    checks: int | None = None
    # Why one state was judged after the other.
    alone: str = ""
    # Whether the check passes when it is told a line that was never acknowledged.
    blind: bool = False


class Proof(Fact, kw_only=True):
    """What is proven of a machine's disk."""

    proven: Proven = msgspec.field(name="proof")


class Counted(Fact, kw_only=True):
    """What the hypervisor counted in an iteration, on average, by the names of `platforms.counters`."""

    each: dict[str, float] = msgspec.field(name="counted")


class FailedRuns(Fact, kw_only=True):
    """How many of a trial's measured runs failed by themselves, how many were tried, and what the first one said."""

    failed: int = msgspec.field(name="failed_runs")
    tried: int = msgspec.field(name="tried_runs")
    reason: str = msgspec.field(name="failed_because")


class MeasuredOn(Fact, kw_only=True):
    """Which machine measured the trial, where several may share a run."""

    machine: str = msgspec.field(name="measured_on")


class Around(Fact, kw_only=True):
    """How long each command of the user's around the measured one took, each time, in seconds."""

    each: dict[str, list[float]] = msgspec.field(name="around_s")


class ShellStart(Fact, kw_only=True):
    """What an empty command of the shell took on that machine, in seconds: subtracted from what it ran."""

    wall_s: float = msgspec.field(name="shell_start_s")
    guest_wall_s: float = msgspec.field(name="shell_start_guest_s")
    user_s: float = msgspec.field(name="shell_start_user_s")
    system_s: float = msgspec.field(name="shell_start_system_s")


class Findings:
    """The facts of a trial that goes on. What is added may still be completed by whoever made it."""

    def __init__(self) -> None:
        self._found: dict[tuple[type[Fact], str], Fact] = {}

    def add(self, fact: F, name: str = "") -> F:
        """Takes the fact, in place of an earlier one of its type; `name` tells several of one type apart."""
        self._found[type(fact), name] = fact
        return fact

    def include(self, others: Findings) -> None:
        """Takes all of the others."""
        self._found |= others._found

    def facts(self) -> Facts:
        """All that is known by now, as it is kept."""
        kept: dict[str, Any] = {}
        for (_, name), fact in self._found.items():
            kept |= {f"{key_prefix(name)}{key}": value for key, value in flatten_fact(fact).items()}
        return Facts(kept)


def flatten_fact(fact: Fact) -> dict[str, Any]:
    """The fact by its keys, in builtin types."""
    plain: dict[str, Any] = msgspec.to_builtins(fact, str_keys=True)
    return plain


def add_fact(facts: Facts, fact: Fact) -> Facts:
    """The facts of a trial that has ended, and one more."""
    return Facts({**facts.kept, **flatten_fact(fact)})


def find_machine(facts: Facts) -> str:
    """The machine that measured a trial with these facts; empty where only one measures."""
    found = facts.find_fact(MeasuredOn)
    return "" if found is None else found.machine


def list_programs(facts: Facts) -> list[Program]:
    """All programs that a trial ran, under whatever name, in the order in which they were found."""
    digests = [key for key in facts.kept if key.endswith(_DIGEST) and not key.endswith(_HOST_DIGEST)]
    found = [facts.find_fact(Program, key.removesuffix(_DIGEST).removesuffix("_")) for key in digests]
    return [program for program in found if program is not None]
