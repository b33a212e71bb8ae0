"""Factors: settings of a machine or a workload, each with one or more levels; several levels span a matrix.

A factor names the machines that take it (those are in `guestmark.setting`), or a kind of platform or workload lists it.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Flag, auto
from typing import Generic, TypeVar

L_co = TypeVar("L_co", covariant=True)

# A label, and a path or source (`apt:VERSION`, `image:NAME`); a source by itself is not a label.
_LABELLED = re.compile(
    r"(?!apt:|image:)([A-Za-z0-9][A-Za-z0-9_.+-]*):(?=[/~.]|apt:|image:)(.+)", re.ASCII | re.DOTALL
)

# Prefix of a parameter of a command whose name is also that of a factor of machines.
ARGUMENT = "arg:"


class Machine(Flag):
    """Kinds of machines, by the program that runs them."""

    NONE = 0
    QEMU = auto()
    UML = auto()
    # A QEMU guest that another guest runs inside.
    OUTER = auto()
    VMM = auto()  # a small hypervisor on KVM
    GUEST = QEMU | UML | VMM


@dataclass(frozen=True, slots=True)
class Factor:
    """One setting: `parse` turns a level as typed into its canonical text or raises `ValueError` with one line.

    `levels` is for completion and help. A level that is a `path` may have a label in front: `old:/boot/vmlinuz-6.1`.
    The kinds in `machines` take the factor without listing it; others have to list it.
    """

    name: str
    help: str
    parse: Callable[[str], str]
    levels: tuple[str, ...] = ()
    path: bool = False
    machines: Machine = Machine.NONE

    def parse_level(self, text: str) -> "str | Labelled":
        """Return the canonical text of a level, with its label if it has one. Raises `ValueError` with one line."""
        found = _LABELLED.fullmatch(text.strip()) if self.path else None
        if found is None:
            return self.parse(text)
        return Labelled(found[1], self.parse(found[2]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting(Factor, Generic[L_co]):
    """A factor whose levels have a type; it is the key of `core.levels.Levels`.

    `read` parses the canonical text of a level. `default` is the canonical text of the level of cells that do not give
    one; if it is empty, whoever starts the machine decides.
    """

    read: Callable[[str], L_co]
    default: str = ""


# Factors of guests whose levels are files and programs other than this host's.
OWN_ROOTS = frozenset({"rootfs", "image"})


class Labelled(str):
    """A level that tables and ids show by its label."""

    __slots__ = ("label",)
    label: str

    def __new__(cls, label: str, level: str) -> "Labelled":
        """Create the level with its label."""
        made = super().__new__(cls, level)
        made.label = label
        return made


def has_factor_named(factors: Iterable[Factor], name: str) -> bool:
    """Return whether one of the factors has that name."""
    return any(factor.name == name for factor in factors)


def one_of(*levels: str, aliases: Mapping[str, str] | None = None) -> Callable[[str], str]:
    """Return a parser that accepts exactly these words; `aliases` maps other spellings to them."""

    def parse(text: str) -> str:
        word = text.strip().lower()
        word = (aliases or {}).get(word, word)
        if word not in levels:
            raise ValueError(f"{text!r} is not one of {', '.join(levels)}")
        return word

    return parse
