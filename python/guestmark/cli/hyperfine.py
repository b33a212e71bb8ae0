"""What people have in their fingers from hyperfine: its parameters, its several commands, its options' names."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Collection, Iterable, Mapping, Sequence
from decimal import Decimal, InvalidOperation

from guestmark.core.errors import UsageError

BETWEEN = "---"  # between commands after `--`
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}", re.ASCII)
_SHELL = re.compile(r"[|&;<>$`*?~#()]")
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


def reordered(arguments: Sequence[str], flags: Collection[str]) -> list[str]:
    """The arguments of a verb with all options first, where commands stand between them as texts, as in hyperfine.

    Options other than `flags` take one word. Raises `UsageError` where -n could be the command's own.
    """
    options: list[str] = []
    found: list[str] = []
    rest = list(arguments)
    while rest and rest[0] != "--":
        word = rest.pop(0)
        if not word.startswith("-") or word in {"-", BETWEEN}:
            if not found and not as_texts([word]):
                _check_names(options, [word, *rest])
                return list(arguments)
            found.append(word)
            continue
        options.append(word)
        whole = "=" not in word if word.startswith("--") else len(word) == 2
        if whole and word not in flags and rest:
            options.append(rest.pop(0))
    return list(arguments) if rest else [*options, *(["--", *found] if found else [])]


_NAMES = {"-n", "--command-name"}


def _check_names(options: Collection[str], words: Sequence[str]) -> None:
    if _NAMES.isdisjoint(options) or _NAMES.isdisjoint(words) or "--" in words:
        return
    raise UsageError(
        "-n stands before and after the first word of a command",
        hint="names first, then -- and the commands: guestmark exec -n A -n B -- true --- false",
    )


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
    try:
        words = shlex.split(text)
    except ValueError:
        return False
    if not words:
        return False
    return shutil.which(words[0]) is not None or _LEVEL.search(words[0]) is not None or _needs_shell(text)


def _needs_shell(text: str) -> bool:
    """Whether something outside of quotes means something to a shell."""
    return _SHELL.search(re.sub(r"'[^']*'|\"[^\"$`]*\"", "", text)) is not None


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
        if _needs_shell(text):
            words = ["sh", "-c", text]
        found.append(words)
    if any(not words for words in found):
        raise UsageError("a command is empty", hint="e.g. guestmark exec -- gzip -9 file --- zstd -9 file")
    return found
