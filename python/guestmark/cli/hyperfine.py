"""What people have in their fingers from hyperfine: its parameters, its several commands, its options' names."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation

from guestmark.agent.wire import StandardOutput
from guestmark.core.errors import UsageError
from guestmark.core.shell_syntax import needs_shell

BETWEEN = "---"  # between commands after `--`
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}", re.ASCII)
_LEVEL = re.compile(r"\{[\w-]+\}")  # a parameter in a command
_MOST_LEVELS = 1000

# What stands for an option in one place only: what to use.
INSTEAD: Mapping[str, str] = {BETWEEN: "commands stand after --, e.g. -- ./old --- ./new"}

_SHELL = frozenset({"-S", "--shell"})
_DEFAULT_SHELL = ("sh",)
_NO_SHELL = "none"
_EVERY_STATUS = "all-non-zero"
_INHERIT = "inherit"
NO_INPUT = "null"  # of `--input`: none, as without it
IGNORED = "--ignored-statuses"  # stands for `--ignore-failure=STATUSES` when options are parsed
_IGNORE = re.compile(r"(?:--ignore-failure|-i)=(.*)", re.DOTALL)


_WORDS = {"-L": 2, "--parameter-list": 2, "-P": 3, "--parameter-scan": 3}  # that an option takes


def joined(arguments: Sequence[str]) -> list[str]:
    """The arguments of a verb with what hyperfine reads in its own way as one word each.

    That are the words of `-L NAME VALUES` and `-P NAME FIRST LAST`, and `--ignore-failure` where it has a value.
    """
    found, rest = [], list(arguments)
    while rest and rest[0] != "--":
        word = rest.pop(0)
        if statuses := _IGNORE.fullmatch(word):
            word = f"{IGNORED}={statuses.group(1)}"
        found.append(word)
        if (count := _WORDS.get(word)) and len(rest) >= count and "=" not in rest[0]:
            name, *values = (rest.pop(0) for _ in range(count))
            found.append(f"{name}={':'.join(values)}")
    return [*found, *rest]


@dataclass(frozen=True, slots=True)
class Known:
    """The options of a verb, by every name that they have."""

    verb: str
    words: Mapping[str, int]  # how many words each takes
    counts: frozenset[str]  # those that take a number

    def meant(self, word: str) -> bool:
        """Whether the word is one of these options, also with its value in the same word."""
        name, equals, _ = word.partition("=")
        if name in self.words and (not equals or self.words[name] == 1):
            return True
        return word[:2] in self.counts and word[2:].isdecimal()

    def after(self, word: str) -> int:
        """How many words after the option are its value."""
        whole = "=" not in word if word.startswith("--") else len(word) == 2
        return self.words.get(word, 1) if whole else 0

    def line(self, options: Iterable[str], words: Iterable[str]) -> str:
        """What to type for these options and that command."""
        return shlex.join(["guestmark", self.verb, *options, "--", *words])


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
                words = [word, *rest]
                check_options(arguments, known, (options, words))
                _check_several(arguments, known, (options, words))
                return joined(arguments)
            found.append(word)
            continue
        options.append(word)
        options += _taken(rest, known.after(word))
    return joined(arguments) if rest else [*options, *(["--", *found] if found else [])]


def _taken(words: list[str], count: int) -> list[str]:
    taken = words[:count]
    del words[:count]
    return taken


def divided(arguments: Sequence[str], known: Known) -> tuple[list[str], list[str]]:
    """The options, and the command after them where no `--` stands before it; else no words."""
    options: list[str] = []
    rest = joined(arguments)
    while rest and rest[0] != "--":
        word = rest.pop(0)
        if not word.startswith("-") or word in {"-", BETWEEN}:
            return options, [word, *rest]
        options.append(word)
        options += _taken(rest, known.after(word))
    return options, []


def check_options(
    arguments: Sequence[str], known: Known, parts: tuple[list[str], list[str]] | None = None
) -> None:
    """Raises `UsageError` for options of the verb after a command before which no `--` stands.

    `parts`: the arguments as they are `divided`.
    """
    options, words = divided(arguments, known) if parts is None else parts
    before = words[: words.index("--")] if "--" in words else words
    own = next((word for word in before if known.meant(word)), None)
    if own is not None:
        moved, command = _moved(words, known)
        raise UsageError(
            f"{own} after the command could be guestmark's or the command's",
            hint=f"guestmark's: {known.line([*options, *moved], command)}\n"
            f"the command's: {known.line(options, _as_typed(arguments, options))}",
        )


def _check_several(arguments: Sequence[str], known: Known, parts: tuple[list[str], list[str]]) -> None:
    """Raises `UsageError` for words of which each could be a command of its own."""
    options, words = parts
    texts = any(option.partition("=")[0] in _SHELL or option[:2] in _SHELL for option in options)
    if len(words) > 1 and BETWEEN not in words and (texts or all(map(_could_be_command, words))):
        several = [word for each in commands([], words) for word in (BETWEEN, *each)][1:]
        raise UsageError(
            f"{shlex.join(words)} could be one command or {len(words)} to compare",
            hint=f"to compare them: {known.line(options, several)}\n"
            f"one command: {known.line(options, _as_typed(arguments, options))}",
        )


def _as_typed(arguments: Sequence[str], options: Sequence[str]) -> Sequence[str]:
    """The command's words before any of them were joined."""
    return arguments[next(at for at in range(len(arguments)) if joined(arguments[:at]) == options) :]


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
        options += _taken(rest, known.after(word))
    return options, others


def parameters(
    lists: Iterable[str] | None, scans: Iterable[str] | None, step: str | None, *, machines: bool = True
) -> dict[str, tuple[str, ...]]:
    """Levels by parameter, of each `NAME=A,B` and `NAME=FIRST:LAST`. Raises `UsageError`.

    With `machines` names of their factors are refused, as either could be meant.
    """
    found: dict[str, tuple[str, ...]] = {}
    for text in lists or ():
        name, _, levels = text.partition("=")
        _add(found, name, machines, [level.strip() for level in levels.split(",")])
    for text in scans or ():
        name, _, ends = text.partition("=")
        first, _, last = ends.partition(":")
        _add(found, name, machines, _scanned(name, first, last, step))
    if step is not None and not scans:
        raise UsageError("-D goes with -P", hint="e.g. -P threads 1 8 -D 2")
    return found


def _add(found: dict[str, tuple[str, ...]], name: str, machines: bool, levels: Sequence[str]) -> None:
    from guestmark.core.platform_kind import is_machine_factor

    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{name!r} cannot be a parameter's name", hint="letters, digits, _ and -, e.g. -L level 1,3,9"
        )
    if machines and is_machine_factor(name):
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


def is_program(word: str) -> bool:
    """Whether the word is a program that could be run from here."""
    return shutil.which(word) is not None


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


@dataclass(frozen=True, slots=True)
class Typed:
    """A command as it was typed."""

    words: list[str]
    text: str | None = None  # what the last of the words is, where the others are a shell


def shell_of(shell: str | None, *, without: bool = False) -> tuple[str, ...] | None:
    """The words of `--shell`: none for no shell, None where each text decides. Raises `UsageError`."""
    if without and shell not in {None, _NO_SHELL}:
        raise UsageError("-N and --shell contradict each other", hint="give only one of them")
    if without or shell == _NO_SHELL:
        return ()
    if shell is None:
        return None
    if shell == "default":
        return _DEFAULT_SHELL
    try:
        words = tuple(shlex.split(shell))
    except ValueError as error:
        raise UsageError(f"--shell {shell!r}: {error}", hint="e.g. -S bash, or -S 'bash --norc'") from error
    if not words:
        raise UsageError("--shell is empty", hint="e.g. -S bash; -S none for no shell")
    return words


def ignored(text: str | None) -> tuple[int, ...] | None:
    """The statuses of `--ignore-failure=STATUSES`; empty for every status. None if it is not given so.

    Raises `UsageError`.
    """
    if text is None:
        return None
    if text == _EVERY_STATUS:
        return ()
    try:
        found = tuple(int(word) for word in text.split(","))
    except ValueError:
        found = (-1,)
    if not all(0 <= status <= 255 for status in found):
        raise UsageError(
            f"--ignore-failure={text}: these are not exit statuses",
            hint=f"e.g. --ignore-failure=1,2, or {_EVERY_STATUS}",
        )
    return found


def typed(
    argv: Sequence[str], texts: Sequence[str] | None, shell: Sequence[str] | None = None
) -> list[Typed]:
    """The commands of `-- A --- B` and of each text, in order. Raises `UsageError`.

    `shell`: the one that runs them all, none of them where it is empty; None for the usual one where a text needs it.
    """
    found = [Typed(words) for words in _between(argv)]
    if shell:
        found = [
            _in_shell(one.words[0] if len(one.words) == 1 else shlex.join(one.words), shell) for one in found
        ]
    for text in texts or ():
        if shell or (shell is None and needs_shell(text)):
            found.append(_in_shell(text, shell or _DEFAULT_SHELL))
            continue
        try:
            found.append(Typed(shlex.split(text)))
        except ValueError as error:
            raise UsageError(f"--command {text!r}: {error}", hint="quote its words as for a shell") from error
    if any(not one.words or one.text == "" for one in found):
        raise UsageError("a command is empty", hint="e.g. guestmark exec -- gzip -9 file --- zstd -9 file")
    return found


def output_of(given: Sequence[str] | None) -> tuple[tuple[StandardOutput, ...], bool]:
    """Where the output of the commands goes, and whether it is shown. Raises `UsageError`."""
    found, shown = [], False
    for where in given or ():
        if where == _INHERIT:
            shown = True
        elif where in {each.value for each in StandardOutput}:
            found.append(StandardOutput(where))
        else:
            raise UsageError(
                f"--output {where}: output goes to null, to a pipe, or is shown (inherit)",
                hint=f"for a file let the command write it: guestmark exec 'COMMAND >{where}'",
            )
    if shown and found:
        raise UsageError("--output inherit is for all commands", hint="give only that, or neither")
    return tuple(found), shown


def commands(argv: Sequence[str], texts: Sequence[str] | None) -> list[list[str]]:
    """The words of the commands that are `typed`. Raises `UsageError`."""
    return [one.words for one in typed(argv, texts)]


def _in_shell(text: str, shell: Sequence[str]) -> Typed:
    return Typed([*shell, "-c", text], text)


def _between(argv: Sequence[str]) -> list[list[str]]:
    found: list[list[str]] = [[]]
    for word in argv:
        if word == BETWEEN:
            found.append([])
        else:
            found[-1].append(word)
    return found if argv else []
