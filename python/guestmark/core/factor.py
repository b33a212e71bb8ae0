"""One setting that a machine or a workload can be given, with one or more levels; several levels span a matrix.

A factor belongs to whatever lists it: a kind of platform (what its machines can be given) or a kind of workload.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Factor:
    """One setting: `parse` turns a level as typed into its canonical text or raises `ValueError` with one line.

    `levels` is for completion and help.
    """

    name: str
    help: str
    parse: Callable[[str], str]
    levels: tuple[str, ...] = ()


def one_of(*levels: str, aliases: Mapping[str, str] | None = None) -> Callable[[str], str]:
    """A parser that accepts exactly these words; `aliases` maps other spellings to them."""

    def parse(text: str) -> str:
        word = text.strip().lower()
        word = (aliases or {}).get(word, word)
        if word not in levels:
            raise ValueError(f"{text!r} is not one of {', '.join(levels)}")
        return word

    return parse
