"""The commands and blocks of README and guides, as they are printed there, and what marks in the source say of them.

A comment before a block says why it, or the lines in it that match an expression, cannot be run by a test:

    <!-- not run: WHY -->
    <!-- not run, EXPRESSION: WHY -->
"""

from __future__ import annotations

import functools
import os
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from bench.experiments.__main__ import EXPERIMENTS

from guestmark.plan.library import list_plan_names, read_builtin
from guestmark.plan.load import load_outline
from tests.framework import CHECKOUT

_MARK = re.compile(r"<!-- not run(?:, (?P<lines>[^:]+))?: (?P<why>.+?) -->")
_FENCE = re.compile(r" *```(\w*)")
_COMMAND = re.compile(r"^(?:\w+\$ +)?(?:\./|/opt/guestmark/)?guestmark (.+)$")


@dataclass(frozen=True)
class Block:
    """A block of code; `language` is empty for an indented one."""

    file: str
    line: int  # of its first line, from 1
    language: str
    text: str
    marks: tuple[tuple[str, str], ...]  # expression, empty for the whole block, and why it is not run

    def why_not(self, line: str) -> str:
        """Return why a line of the block is not run; empty for a line that is run."""
        return next((why for lines, why in self.marks if not lines or re.search(lines, line)), "")


@dataclass(frozen=True)
class Typed:
    """A command line."""

    where: str  # file and line
    text: str  # as printed
    words: tuple[str, ...]  # after `guestmark`
    why_not: str


def pages() -> list[Path]:
    """Return the paths of README and the guides."""
    return [CHECKOUT / "README.md", *sorted((CHECKOUT / "docs/guide").glob("*.md"))]


def blocks(page: Path) -> Iterator[Block]:
    """Yield every block of code on a page, in order."""
    lines = page.read_text().splitlines()
    name = page.name
    marks: list[tuple[str, str]] = []
    at = 0
    while at < len(lines):
        line = lines[at]
        if mark := _MARK.fullmatch(line.strip()):
            marks.append((mark["lines"] or "", mark["why"]))
            at += 1
            continue
        begin = at + 1
        if fence := _FENCE.match(line):
            end = next(n for n in range(at + 1, len(lines)) if lines[n].strip() == "```")
            yield Block(name, begin + 1, fence[1], "\n".join(lines[at + 1 : end]), tuple(marks))
            at, marks = end + 1, []
        elif line.startswith("    ") and line.strip() and (at == 0 or not lines[at - 1].strip() or marks):
            end = at
            while end < len(lines) and (lines[end].startswith("    ") or not lines[end].strip()):
                end += 1
            text = "\n".join(each[4:] for each in lines[at:end]).rstrip()
            yield Block(name, begin, "", text, tuple(marks))
            at, marks = end, []
        else:
            if line.strip():
                marks = []
            at += 1


def commands(page: Path) -> Iterator[Typed]:
    """Yield every guestmark command line in the page's shell blocks."""
    for block in blocks(page):
        if block.language not in {"", "sh"}:
            continue
        whole = ""
        begin = 0
        for number, line in enumerate(block.text.splitlines()):
            begin = begin if whole else number
            whole += line
            if whole.endswith("\\"):
                whole = whole[:-1]
                continue
            text = whole.strip()
            inner = re.fullmatch(r"\w+=\$\((.+)\) *(#.*)?", text)
            found = _COMMAND.match(inner[1] if inner else text)
            words = _words(found[1]) if found else ()
            if words is None:  # a quotation that goes on in the next line
                whole += "\n"
                continue
            whole = ""
            if found:
                yield Typed(f"{block.file}:{block.line + begin}", text, words, block.why_not(text))


def _words(text: str) -> tuple[str, ...] | None:
    """Return the words of a command line; None if a quotation is not closed yet."""
    try:
        return tuple(shlex.split(text, comments=True))
    except ValueError:
        return None


_FIXED = frozenset({
    "--blocks", "-r", "--runs", "--quick", "--precision", "--find", "--for", "--time-limit", "--list", "--prepare-only",
    "replay",
})  # fmt: skip
_BRIEFLY = {
    "exec": ("--blocks", "1", "--null", "none"),
    "ab": ("--blocks", "1", "--null", "none"),
    "boot": ("--blocks", "1"),
    "tour": ("--blocks", "1"),
    "run": ("--blocks", "1"),
    "powercut": ("--states", "10", "--records", "10"),
    "tune": ("--for", "2m"),
}
_FEWEST_BLOCKS = {"run": "1", "exec": "2", "ab": "2"}
_SMALL = ("--scale", "0.02")
# In a nested guest a command can take a minute, so it is run once.
_ONCE = ("--iterations", "1", "--warmup", "0")
_REPEATED = {"--iterations", "--warmup", "-w"}
_SHORTER = {"--for": "30s", "--over": "4s", "--scale": "0.02", "--time-limit": "30s"}
# A plan may have any number of rows; within a budget those that are asked for by name come first.
_OWN_PLAN = ("--for", "30s")
# Proofs, and guests inside others, have to start within half of it.
_LONGER = "90s"
# Commands that start libguestfs or a guest in each kind of outer guest; tests/guest/test_nested.py and test_boot.py do.
_TRIED_ELSEWHERE = frozenset({("doctor", "--nested"), ("boot", "--guestfish")})
# In the environment of a command that runs a plan which an earlier one of README or guides has run, or another test
# measures: it only lists the rows that it would measure. For that it reads all its options, and fits its questions into
# the time.
KNOWN_PLAN = "GUESTMARK_TESTS_KNOWN_PLAN"
# By tests/guest/test_experiments.py.
_MEASURED_ELSEWHERE = frozenset(each.words[0] for each in EXPERIMENTS if not each.foreign)
# Plans whose questions need every row of theirs.
_INDIVISIBLE = frozenset({"clones", "coldstart", "density"})
# A few machines suffice: every further one only repeats the same.
_FEWER_CLONES = ("workloads.clones.params.machines=3", "workloads.clones.params.controls=2")
_TURNS = re.compile(r"seq [0-9]+")
# Verbs whose command on another page is the same one.
_RUN_ONCE = frozenset({"run", "tune", "tour", "doctor"})
_WHOLE = frozenset({"tune"})  # verbs whose time is needed for proofs, of which none can be left out


def find_plan(words: tuple[str, ...]) -> str:
    """Returns the built-in plan that a command line runs; empty if it runs none."""
    if words[:1] != ("run",):
        return ""
    known = list_plan_names()
    return next((word for word in words if word in known), "")


@functools.cache
def _first_places() -> Mapping[tuple[str, ...], str]:
    """Where each command that measures is first run, as it is run, and each built-in plan, by its name alone."""
    found: dict[tuple[str, ...], str] = {}
    for page in pages():
        for each in commands(page):
            if each.words[0] in _RUN_ONCE and not each.why_not:
                found.setdefault(tuple(briefly(list(each.words))), each.where)
                found.setdefault((find_plan(each.words),), each.where)  # no command is a plan's name alone
    return found


def repeats(each: Typed) -> bool:
    """Whether an earlier page or line has led to the same command, or a test of its own tries the same."""
    if any(verb == each.words[0] and option in each.words for verb, option in _TRIED_ELSEWHERE):
        return True
    return "mine.toml" not in each.words and (
        _first_places().get(tuple(briefly(list(each.words))), each.where) != each.where
    )


def runs_known_plan(each: Typed) -> bool:
    """Whether an earlier page or line runs the same built-in plan, or another test measures its rows."""
    plan = find_plan(each.words)
    return bool(plan) and (plan in _MEASURED_ELSEWHERE or _first_places()[plan,] != each.where)


def drop_blocks(options: list[str]) -> list[str]:
    """Return the options without `--blocks N`, which a budget takes the place of."""
    if "--blocks" not in options:
        return options
    at = options.index("--blocks")
    return options[:at] + options[at + 2 :]


def replace_override(options: list[str], setting: str) -> list[str]:
    """Return the options with `--override SETTING` in place of another value for the same name."""
    name = setting.partition("=")[0] + "="
    kept: list[str] = []
    for word in options:
        if word.startswith(name) and kept and kept[-1] == "--override":
            kept.pop()
        else:
            kept.append(word)
    return [*kept, "--override", setting]


def _starts_nested(verb: str, options: list[str]) -> bool:
    """Whether guests start inside others: on the named platforms, or else on those of the built-in plan."""
    if "--on" in options:
        return "/" in options[options.index("--on") + 1]
    plan = find_plan((verb, *options))
    if not plan:
        return False
    shape = load_outline(read_builtin(plan), plan).shape
    platforms = [*shape.platforms, *chain.from_iterable(entry.platforms or () for entry in shape.entries)]
    return any(platform.is_nested for platform in platforms)


def briefly(words: list[str]) -> list[str]:
    """Return the command line's words, changed so that it measures less: one block, a small scale."""
    verb, *rest = words
    if os.environ.get(KNOWN_PLAN) and "--prepare-only" not in rest:
        return [verb, "--list", *rest]
    is_slow = "--prove" in rest or _starts_nested(verb, rest)
    command = rest.index("--") if "--" in rest else len(rest)
    # A loop of a few turns is the same loop.
    options, command_line = rest[:command], [_TURNS.sub("seq 3", word) for word in rest[command:]]
    for name, value in _SHORTER.items():
        if name in options and verb not in _WHOLE:
            options[options.index(name) + 1] = _LONGER if name == "--for" and is_slow else value
    if verb in _FEWEST_BLOCKS and "--blocks" in options:
        options[options.index("--blocks") + 1] = _FEWEST_BLOCKS[verb]
    added: tuple[str, ...] = ()
    plan = find_plan((verb, *options))
    if (plan and plan not in _INDIVISIBLE) or (verb == "run" and "mine.toml" in options):
        if not {"--for", "--time-limit", "--list", "--prepare-only"} & set(options):
            added = ("--for", _LONGER) if is_slow else _OWN_PLAN
            options = drop_blocks(options)
    elif not _FIXED & set(options):
        added = _BRIEFLY.get(verb, ())
    if verb == "exec" and "--on" in options and not _REPEATED & set(options):
        added += _ONCE
    if verb == "tune" and "fastest-safe" in options and "--list" not in options:
        # Its candidates take proofs, as those of the plan do that the guide about races runs.
        added += ("--list",)
    if (
        verb == "run"
        and "--scale" not in options
        and "--list" not in options
        and "--for" not in (*options, *added)
    ):
        added += _SMALL
    if plan == "clones":
        for setting in _FEWER_CLONES:
            options = replace_override(options, setting)
    return [verb, *options, *added, *command_line] if command_line else [verb, *added, *options]
