"""Chooses which of the host's processors a machine, its emulator's other threads and the control plane get.

Functions here only choose; `platforms.affinity` changes processes. This module is cheap to import.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from guestmark.core.errors import UsageError

NAME = "placement"  # of the factor
PINNED, FREE, LIST = "pinned", "free", "cpus="
# The capacity that Linux assigns to the fastest processors of a machine.
FULL_CAPACITY = 1024
_RANGE = re.compile(r"(\d{1,5})(?:-(\d{1,5}))?", re.ASCII)


def parse_processor_list(text: str) -> tuple[int, ...]:
    """Return the numbers of a list in Linux's form (`0,2-3`), ascending. Raises `ValueError` with one line."""
    numbers: set[int] = set()
    for part in text.strip().split(","):
        found = _RANGE.fullmatch(part.strip())
        if not found:
            raise ValueError(f"{text!r} is not a list of processors")
        first, last = int(found[1]), int(found[2] or found[1])
        if last < first:
            raise ValueError(f"{part.strip()!r} ends before it begins")
        numbers.update(range(first, last + 1))
    return tuple(sorted(numbers))


def format_processor_list(numbers: Iterable[int]) -> str:
    """Return the list in Linux's form; the inverse of `parse_processor_list`."""
    ranges: list[list[int]] = []
    for number in sorted(set(numbers)):
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    parts = []
    for first, last in ranges:
        parts.append(str(first) if first == last else f"{first}-{last}")
    return ",".join(parts)


def parse_placement(text: str) -> str:
    """Return a level of the factor in its canonical spelling. Raises `ValueError`."""
    word = text.strip().lower()
    if word in (PINNED, FREE):
        return word
    if word.startswith(LIST):
        return LIST + format_processor_list(parse_processor_list(word.removeprefix(LIST)))
    raise ValueError(f"{text!r} is not one of {PINNED}, {FREE}, {LIST}LIST")


@dataclass(frozen=True, slots=True)
class Processor:
    """One processor of the host, by Linux's number; hyper-threads of one core have the same `core`."""

    number: int
    core: tuple[int, int]  # package, core
    node: int = 0
    # Less on the small cores of big.LITTLE.
    capacity: int = FULL_CAPACITY


@dataclass(frozen=True, slots=True)
class Topology:
    """The processors that this process may use, by number."""

    processors: tuple[Processor, ...]

    @property
    def numbers(self) -> tuple[int, ...]:
        """The processors' numbers, ascending."""
        return tuple(processor.number for processor in self.processors)

    def find_processor(self, number: int) -> Processor:
        """Return the processor of that number."""
        return next(processor for processor in self.processors if processor.number == number)

    def find_processors(self, numbers: Iterable[int]) -> list[Processor]:
        """Return the processors of these numbers, in the same order."""
        return [self.find_processor(number) for number in numbers]


class Crowded(StrEnum):
    """How a machine's processors are shared or unequal; ledgers store these words."""

    THREADS = "some of the machine's processors are hyper-threads of one core"
    UNEQUAL = "the machine's processors are not equally fast"
    NODES = "the machine's processors are on several NUMA nodes"
    CONTROL = "the control plane shares the machine's processors"


@dataclass(frozen=True, slots=True)
class Placement:
    """The host processors on which each part of a machine runs.

    Virtual processor i has `machine[i]` if there are as many of them (`one_each`), otherwise they share all of
    `machine`.
    """

    level: str
    processors: int  # the machine's virtual processors
    machine: tuple[int, ...]
    emulator: tuple[int, ...]
    control: tuple[int, ...]
    nodes: tuple[int, ...] = ()  # NUMA nodes of `machine`
    # What could not be kept apart.
    remarks: tuple[str, ...] = ()

    @property
    def one_each(self) -> bool:
        """Whether every virtual processor has a host processor to itself."""
        return self.level != FREE and len(self.machine) == self.processors


def choose_processors(topology: Topology, level: str, processors: int, *, emulator: bool = True) -> Placement:
    """Choose the host processors of a machine with that many virtual processors (0: all that this process may use).

    With `emulator`, threads besides the virtual processors get processors of their own; otherwise all threads of the
    machine share the same processors. Raises `UsageError` for a list that this process may not use.
    """
    every = topology.numbers
    wanted = processors or len(every)
    if level == FREE:
        return _make_placement(topology, level, wanted, every, every, every)
    if level.startswith(LIST):
        given = parse_processor_list(level.removeprefix(LIST))
        if refused := [number for number in given if number not in every]:
            raise UsageError(
                f"{NAME}={level}: this process may not use processor {format_processor_list(refused)}",
                hint=f"it may use {format_processor_list(every)}",
            )
        machine = own = given[:wanted]
        if emulator:
            own = given[wanted:] or machine
        others = tuple(number for number in every if number not in given)
        return _make_placement(topology, level, wanted, machine, own, others or every)
    machine = _rank_for_machine(topology, wanted)
    rest = _rank_for_emulator(topology, machine)
    if not rest:
        shared = every if emulator else machine
        return _make_placement(topology, level, wanted, machine, shared, every)
    # Waking the control plane's processor costs the emulator more than sharing with its virtual processors does
    # (bench/placement): its threads have processors of their own only where some are spare.
    *spare, control = rest
    own = tuple(sorted(spare[: len(machine)])) if emulator else ()
    return _make_placement(topology, level, wanted, machine, own or machine, (control,))


def _make_placement(  # noqa: PLR0917 (the three places in the order of `Placement`)
    topology: Topology,
    level: str,
    wanted: int,
    machine: Sequence[int],
    emulator: Sequence[int],
    control: Sequence[int],
) -> Placement:
    found = topology.find_processors(machine)
    distinct_nodes = {processor.node for processor in found}
    remarks: list[str] = []
    if level != FREE:
        if len(machine) < wanted:
            remarks.append(f"{wanted} virtual processors share {_format_processors(len(machine))}")
        if len({processor.core for processor in found}) < len(found):
            remarks.append(Crowded.THREADS)
        if len({processor.capacity for processor in found}) > 1:
            remarks.append(Crowded.UNEQUAL)
        if len(distinct_nodes) > 1:
            remarks.append(Crowded.NODES)
        if set(control) & set(machine) and len(topology.numbers) > 1:
            remarks.append(Crowded.CONTROL)
    nodes = tuple(sorted(distinct_nodes))
    return Placement(level, wanted, tuple(machine), tuple(emulator), tuple(control), nodes, tuple(remarks))


def _rank_for_machine(topology: Topology, wanted: int) -> tuple[int, ...]:
    """Return equally fast processors, one on each core, on one node if possible.

    High numbers come first, because processor 0 usually serves interrupts.
    """
    first, second = _split_threads(topology.processors)
    by_number = sorted(first, key=lambda processor: -processor.number)
    by_capacity: dict[int, list[Processor]] = {}
    by_place: dict[tuple[int, int], list[Processor]] = {}
    for processor in by_number:
        by_capacity.setdefault(processor.capacity, []).append(processor)
        by_place.setdefault((processor.capacity, processor.node), []).append(processor)
    for _, fitting in sorted(by_place.items(), reverse=True):
        # A spare core keeps the emulator on the same node.
        if len(fitting) > wanted or (len(fitting) == wanted and len(by_number) > wanted):
            return _sort_numbers(fitting[:wanted])
    for _, equal in sorted(by_capacity.items(), reverse=True):
        if len(equal) >= wanted:
            return _sort_numbers(equal[:wanted])
    fastest_first = sorted([*first, *second], key=lambda one: (one in second, -one.capacity, -one.number))
    return _sort_numbers(fastest_first[:wanted])


def _rank_for_emulator(topology: Topology, machine: Collection[int]) -> list[int]:
    """Return the other processors, the best place for an emulator first.

    Such a place is on another core than the machine, near its memory, and fast.

    The last of them that is the first thread of its core is for the control plane.
    """
    mine = topology.find_processors(machine)
    cores = {processor.core for processor in mine}
    nodes = {processor.node for processor in mine}
    others = [processor for processor in topology.processors if processor.number not in machine]
    apart = [processor for processor in others if processor.core not in cores] or others
    first, _ = _split_threads(apart)
    best_first = sorted(
        apart, key=lambda one: (one not in first, one.node not in nodes, -one.capacity, -one.number)
    )
    # The control plane gets the last whole core, which is the slowest and the most distant one.
    for processor in reversed(best_first):
        if processor in first:
            best_first.remove(processor)
            best_first.append(processor)
            break
    return [processor.number for processor in best_first]


def _split_threads(processors: Iterable[Processor]) -> tuple[list[Processor], list[Processor]]:
    """Return the first thread of every core, and the others."""
    first: list[Processor] = []
    second: list[Processor] = []
    seen: set[tuple[int, int]] = set()
    for processor in processors:
        if processor.core in seen:
            second.append(processor)
        else:
            first.append(processor)
        seen.add(processor.core)
    return first, second


def _sort_numbers(processors: Iterable[Processor]) -> tuple[int, ...]:
    return tuple(sorted(processor.number for processor in processors))


def _format_processors(number: int) -> str:
    return "1 processor" if number == 1 else f"{number} processors"
