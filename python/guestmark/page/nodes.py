"""The nodes that sections consist of."""

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from guestmark.page.charts import Drawing
from guestmark.page.tables import Table
from guestmark.page.text import Inline, Tone


@dataclass(frozen=True, slots=True)
class Heading:
    """A heading inside a section."""

    text: str


@dataclass(frozen=True, slots=True)
class Paragraph:
    """Sentences."""

    text: Inline


class NoteKind(StrEnum):
    """How severely a note limits the result."""

    SMALL = "small"  # small print
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Note:
    """A one-line remark about the result; warnings and errors limit what it means."""

    text: Inline
    kind: NoteKind = NoteKind.SMALL


@dataclass(frozen=True, slots=True)
class Bullets:
    """A list of items under a line; `lead` may be empty."""

    lead: Inline
    items: tuple[Inline, ...]


@dataclass(frozen=True, slots=True)
class Command:
    """A command to copy and what it is for."""

    purpose: str
    command: str


@dataclass(frozen=True, slots=True)
class Definitions:
    """Names with their values, under a caption."""

    caption: str
    rows: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class MatrixCell:
    """A figure of a matrix; `heat` ranges from -1 (best) through 0 (the baseline) to 1 (worst), None if unknown."""

    text: str
    tone: Tone = Tone.PLAIN
    heat: float | None = None


@dataclass(frozen=True, slots=True)
class Matrix:
    """A table of two factors, whose rows and columns are levels; a heat map if there are colours."""

    caption: str
    row_factor: str
    column_factor: str
    row_levels: tuple[str, ...]
    column_levels: tuple[str, ...]
    cells: tuple[tuple[MatrixCell, ...], ...]  # by row


@dataclass(frozen=True, slots=True)
class Chart:
    """A drawing with its title, a caption, and an alternative text that describes it in words.

    Formats without pictures draw it with characters where possible; its figures are always in a table as well.
    """

    title: str
    caption: str
    alternative: str
    drawing: Drawing


Node = Heading | Paragraph | Note | Bullets | Command | Definitions | Matrix | Chart | Table
_Kind = TypeVar("_Kind", bound=Node)


class Part(StrEnum):
    """The part of a report that a section belongs to."""

    WORKLOAD = "workload"
    PUBLISHED = "published"
    CONCLUSION = "conclusion"
    VALIDITY = "validity"
    ENVIRONMENT = "environment"
    FOOTER = "footer"


@dataclass(frozen=True, slots=True)
class Section:
    """Nodes that belong together. `key` explains the numbers that rows get if their names are too long.

    A section that is not `titled` shows its title only in formats with headings.
    """

    part: Part
    title: str
    nodes: tuple[Node, ...]
    subtitle: str = ""
    key: Table | None = None
    titled: bool = True

    def find_first(self, kind: type[_Kind]) -> _Kind | None:
        """Return the first node of this kind; None if there is none."""
        for node in self.nodes:
            if isinstance(node, kind):
                return node
        return None


@dataclass(frozen=True, slots=True)
class Page:
    """A whole report."""

    title: str
    run_id: str
    sections: tuple[Section, ...]
