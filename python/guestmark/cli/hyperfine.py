"""What people have in their fingers from hyperfine: its parameters, its several commands, its options' names."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation

from guestmark.core.errors import UsageError
from guestmark.core.shell_syntax import needs_shell

BETWEEN = "---"  # between commands after `--`
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}", re.ASCII)
_LEVEL = re.compile(r"\{[\w-]+\}")  # a parameter in a command
_MOST_LEVELS = 1000

# Options of hyperfine that mean something else here, or nothing: what to use.
INSTEAD: Mapping[str, str] = {
    BETWEEN: "commands stand after --, e.g. -- ./old --- ./new",
    "-m": "runs have at least 8 blocks; --blocks N makes it exactly N",
    "--min-runs": "runs have at least 8 blocks; --blocks N makes it exactly N",
    "-M": "--time-limit bounds a run, --blocks N makes it exactly N",
    "--max-runs": "--time-limit bounds a run, --blocks N makes it exactly N",
    "-S": "commands run without a shell; for one: -- sh -c 'COMMAND | COMMAND'",
    "--shell": "commands run without a shell; for one: -- sh -c 'COMMAND | COMMAND'",
    "--style": "NO_COLOR and TERM decide; --quiet shows no progress",
    "--sort": "rows keep the order of the command line",
    "-u": "units are chosen to fit; --json holds seconds",
    "--time-unit": "units are chosen to fit; --json holds seconds",
    "--export-asciidoc": "--markdown FILE, --html FILE, --csv FILE and --json FILE",
    "--export-orgmode": "--markdown FILE, --html FILE, --csv FILE and --json FILE",
    "--reference": "the first command is the baseline; --baseline names another cell",
    "--min-benchmarking-time": "--precision or --blocks decides when to stop",
}


_WORDS = {"-L": 2, "--parameter-list": 2, "-P": 3, "--parameter-scan": 3}  # that an option takes


def joined(arguments: Sequence[str]) -> list[str]:
    """The arguments of a verb with the words of `-L NAME VALUES` and `-P NAME FIRST LAST` as one word each."""
    found, rest = [], list(arguments)
    while rest and rest[0] != "--":
        word = rest.pop(0)
        found.append(word)
        if (count := _WORDS.get(word)) and len(rest) >= count and "=" not in rest[0]:
            name, *values = (rest.pop(0) for _ in range(count))
            found.append(f"{name}={':'.join(values)}")
    return [*found, *rest]


@dataclass(frozen=True, slots=True)
class Known:
    """The options of a verb, by every name that they have."""

    flags: frozenset[str]  # that take no word
    valued: frozenset[str]  # that take one
    counts: frozenset[str]  # those of them that take a number

    def meant(self, word: str) -> bool:
        """Whether the word is one of these options, also with its value in the same word, or one of hyperfine's."""
        name, equals, _ = word.partition("=")
        if word in self.flags or (word in INSTEAD and word != BETWEEN):
            return True
        if name in self.valued or (equals and name in INSTEAD):
            return True
        return word[:2] in self.counts and word[2:].isdecimal()

    def takes_next(self, word: str) -> bool:
        """Whether the option's value is the word after it."""
        whole = "=" not in word if word.startswith("--") else len(word) == 2
        return whole and word not in self.flags


def reordered(arguments: Sequence[str], known: Known) -> list[str]:
    """The arguments of a verb, their parameters `joined`, with all options first where commands are texts.

    Raises `UsageError` where one command with arguments and something else could be meant: options after the command
    that are the verb's as well, and words of which each is a command.
    """
    options: list[str] = []
    found: list[str] = []
    rest = joined(arguments)
    while rest and rest[0] != "--":
        word = rest.pop(0)
        if not word.startswith("-") or word in {"-", BETWEEN}:
            if not found and not as_texts([word]):
                _check_one(arguments, options, [word, *rest], known)
                return joined(arguments)
            found.append(word)
            continue
        options.append(word)
        if known.takes_next(word) and rest:
            options.append(rest.pop(0))
    return joined(arguments) if rest else [*options, *(["--", *found] if found else [])]


def _check_one(arguments: Sequence[str], options: Sequence[str], words: Sequence[str], known: Known) -> None:
    """Raises `UsageError` unless the words, before which no `--` stands, are one command and nothing else."""
    before = next(at for at in range(len(arguments)) if joined(arguments[:at]) == options)
    one = _line(options, arguments[before:])
    own = next((word for word in words if known.meant(word)), None)
    if own is not None:
        moved, command = _moved(words, known)
        raise UsageError(
            f"{own} after the command could be guestmark's or the command's",
            hint=f"guestmark's: {_line([*options, *moved], command)}\nthe command's: {one}",
        )
    if len(words) > 1 and BETWEEN not in words and all(map(_could_be_command, words)):
        several = [word for each in commands([], words) for word in (BETWEEN, *each)][1:]
        raise UsageError(
            f"{shlex.join(words)} could be one command or {len(words)} to compare",
            hint=f"to compare them: {_line(options, several)}\none command: {one}",
        )


def _line(options: Iterable[str], words: Iterable[str]) -> str:
    return shlex.join(["guestmark", "exec", *options, "--", *words])


def _moved(words: Sequence[str], known: Known) -> tuple[list[str], list[str]]:
    """The verb's options among the words, with their values, and the other words."""
    options: list[str] = []
    others: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if not known.meant(word):
            others.append(word)
            continue
        options.append(word)
        if known.takes_next(word) and rest:
            options.append(rest.pop(0))
    return options, others


def parameters(
    lists: Iterable[str] | None, scans: Iterable[str] | None, step: str | None
) -> dict[str, tuple[str, ...]]:
    """Levels by parameter, of each `NAME=A,B` and `NAME=FIRST:LAST`. Raises `UsageError`."""
    found: dict[str, tuple[str, ...]] = {}
    for text in lists or ():
        name, _, levels = text.partition("=")
        _add(found, name, [level.strip() for level in levels.split(",")])
    for text in scans or ():
        name, _, ends = text.partition("=")
        first, _, last = ends.partition(":")
        _add(found, name, _scanned(name, first, last, step))
    if step is not None and not scans:
        raise UsageError("-D goes with -P", hint="e.g. -P threads 1 8 -D 2")
    return found


def _add(found: dict[str, tuple[str, ...]], name: str, levels: Sequence[str]) -> None:
    from guestmark.core.platform_kind import of_machines

    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{name!r} cannot be a parameter's name", hint="letters, digits, _ and -, e.g. -L level 1,3,9"
        )
    if of_machines(name) or name in {"platform", "workload"}:
        raise UsageError(
            f"{name} is a factor of machines", hint=f"--set {name}=… sets it; give the parameter another name"
        )
    if name in found or len(set(levels)) < len(levels) or not all(levels):
        raise UsageError(f"parameter {name}: a level is missing or given twice", hint="e.g. -L level 1,3,9")
    found[name] = tuple(levels)


def _scanned(name: str, first: str, last: str, step: str | None) -> list[str]:
    try:
        low, high, by = Decimal(first), Decimal(last), Decimal(step or "1")
    except InvalidOperation as error:
        raise UsageError(
            f"-P {name}: {first}, {last} and {step or 1} are not all numbers", hint="e.g. -P threads 1 8"
        ) from error
    if not all(value.is_finite() for value in (low, high, by)) or by <= 0 or high < low:
        raise UsageError(
            f"-P {name}: nothing lies from {first} to {last} in steps of {step or 1}",
            hint="e.g. -P threads 1 8 -D 1",
        )
    if (high - low) / by >= _MOST_LEVELS:
        raise UsageError(f"-P {name}: that is more than {_MOST_LEVELS} levels", hint="a larger step: -D STEP")
    return [str(low + by * number) for number in range(int((high - low) / by) + 1)]


def as_texts(argv: Sequence[str]) -> list[str]:
    """The words, where each is a command as hyperfine takes them (`'sleep 0.1' 'sleep 0.2'`); else nothing.

    The first holds blanks and is not a program itself, and each begins with a program or needs a shell.
    """
    if not argv or BETWEEN in argv or not re.search(r"\s", argv[0]) or shutil.which(argv[0]):
        return []
    return list(argv) if all(map(_is_command, argv)) else []


def _is_command(text: str) -> bool:
    """Whether a text, quoted as one word, begins with a program or with what a shell knows."""
    try:
        words = shlex.split(text)
    except ValueError:
        return False
    if not words:
        return False
    return shutil.which(words[0]) is not None or _LEVEL.search(words[0]) is not None or needs_shell(text)


def _could_be_command(word: str) -> bool:
    """Whether a word beside others could be a command of its own: a program, or a quoted text that begins with one."""
    if shutil.which(word) is not None:
        return True
    return re.search(r"\s", word) is not None and _is_command(word)


def commands(argv: Sequence[str], texts: Sequence[str] | None) -> list[list[str]]:
    """The commands of `-- A --- B` and of each `--command TEXT`, in order. Raises `UsageError`."""
    found: list[list[str]] = [[]]
    for word in argv:
        if word == BETWEEN:
            found.append([])
        else:
            found[-1].append(word)
    if not argv:
        found.clear()
    for text in texts or ():
        try:
            words = shlex.split(text)
        except ValueError as error:
            raise UsageError(f"--command {text!r}: {error}", hint="quote its words as for a shell") from error
        found.append(["sh", "-c", text] if needs_shell(text) else words)
    if any(not words for words in found):
        raise UsageError("a command is empty", hint="e.g. guestmark exec -- gzip -9 file --- zstd -9 file")
    return found
