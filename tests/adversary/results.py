"""What was seen of the attacks, as it is kept in `results.json`, and the tables that a page has of it."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Self

KEPT = Path(__file__).with_name("results.json")
PAGE = Path(__file__).resolve().parents[2] / "docs/reference/confinement.md"
BEGIN, END = "<!-- what was seen: `python -m tests.adversary --write` -->", "<!-- end of what was seen -->"


class Outcome(StrEnum):
    """Of one attempt, or of one blow, as the page has it."""

    REFUSED = "refused"
    REACHED = "**reached**"
    OWN = "its own"  # a sandbox's, and nothing of the host's
    NOT_HERE = "–"  # not even without a cage
    NOTHING = "nothing"  # was left
    LEFT = "**left**"
    NOT_TRIED = ""


@dataclass(frozen=True, slots=True)
class Held:
    """How many checks of a kind there are, how many held, and where they are."""

    held: int
    tried: int
    files: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Results:
    """By attempt and way of starting or sandbox, by blow and machine, by kind of material; all on one kernel."""

    kernel: str
    within_s: float
    attempts: dict[str, dict[str, Outcome]] = field(default_factory=dict)
    sandboxes: dict[str, dict[str, Outcome]] = field(default_factory=dict)
    kills: dict[str, dict[str, Outcome]] = field(default_factory=dict)
    material: dict[str, Held] = field(default_factory=dict)
    sandboxes_kernel: str = ""  # where that was another one
    kills_kernel: str = ""  # likewise

    @classmethod
    def kept(cls) -> Self:
        """Those of the last run that wrote them."""
        found: dict[str, Any] = json.loads(KEPT.read_text())

        def outcomes(part: str) -> dict[str, dict[str, Outcome]]:
            return {
                row: {column: Outcome(said) for column, said in cells.items()}
                for row, cells in found[part].items()
            }

        material = {
            name: Held(held["held"], held["tried"], tuple(held["files"]))
            for name, held in found["material"].items()
        }
        attempts, sandboxes, kills = map(outcomes, ("attempts", "sandboxes", "kills"))
        return cls(
            found["kernel"],
            found["within_s"],
            attempts,
            sandboxes,
            kills,
            material,
            found["sandboxes_kernel"],
            found.get("kills_kernel", ""),
        )

    def keep(self) -> None:
        """Writes them, and the page's tables."""
        KEPT.write_text(json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n")
        before, _, rest = PAGE.read_text().partition(BEGIN)
        PAGE.write_text(before + BEGIN + self.section() + END + rest.partition(END)[2])

    def section(self) -> str:
        """What stands between `BEGIN` and `END`."""
        other = f"; in sandboxes on {self.sandboxes_kernel}" if self.sandboxes_kernel else ""
        other += f"; what was killed on {self.kills_kernel}" if self.kills_kernel else ""
        left = {f"left of {name} after {self.within_s:g} s": name for name in _columns(self.kills)}
        kills = {
            blow: {title: of.get(name, Outcome.NOT_TRIED) for title, name in left.items()}
            for blow, of in self.kills.items()
        }
        material = [
            f"| {name} | {_held(held)} | {', '.join(f'`{file}`' for file in held.files)} |"
            for name, held in self.material.items()
        ]
        lines = [
            "", f"Seen on Linux {self.kernel}, as root and as another user{other}.",
            "", *_table("an attempt by its own code", self.attempts),
            "", *_table("an attempt by a program in a sandbox", self._in_sandboxes()),
            "", *_table("at once", kills),
            "", "| given | held | tested by |", "| --- | --- | --- |", *material, "", "",
        ]  # fmt: skip
        return "\n".join(lines)

    def _in_sandboxes(self) -> dict[str, dict[str, Outcome]]:
        """That a sandbox refuses it is not shown where this kernel has none of it for anybody."""
        absent = {row for row, cells in self.attempts.items() if Outcome.NOT_HERE in cells.values()}
        return {
            row: {
                column: Outcome.NOT_HERE if said is Outcome.REFUSED and row in absent else said
                for column, said in cells.items()
            }
            for row, cells in self.sandboxes.items()
        }

    @property
    def is_safe(self) -> bool:
        """Nothing was left, and every check held. What can be reached is the page's to say."""
        return all(held.held == held.tried > 0 for held in self.material.values()) and not any(
            said is Outcome.LEFT for cells in self.kills.values() for said in cells.values()
        )


def this_kernel() -> str:
    """As the page names it."""
    return f"{os.uname().release}, {os.uname().machine}"


def section_of_page() -> str:
    """What the page has between `BEGIN` and `END`."""
    return PAGE.read_text().partition(BEGIN)[2].partition(END)[0]


def _columns(rows: dict[str, dict[str, Outcome]]) -> list[str]:
    return list(dict.fromkeys(column for cells in rows.values() for column in cells))


def _table(title: str, rows: dict[str, dict[str, Outcome]]) -> list[str]:
    columns = _columns(rows)
    return [
        f"| {title} | {' | '.join(columns)} |",
        "| --- " * (len(columns) + 1) + "|",
        *(f"| {row} | {' | '.join(cells[column] for column in columns)} |" for row, cells in rows.items()),
    ]


def _held(held: Held) -> str:
    return f"all {held.tried}" if held.held == held.tried > 0 else f"**only** {held.held} of {held.tried}"
