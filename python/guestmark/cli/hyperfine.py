"""Parses command lines as hyperfine does: parameters, several commands, and options with optional values."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation

from guestmark.agent.wire import StandardOutput
from guestmark.core.errors import UsageError
from guestmark.core.platform_kind import is_machine_factor
from guestmark.core.shell_syntax import has_special_characters, needs_shell

# Separates commands after `--`, where one or two dashes could belong to a command.
SEPARATOR = "---"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}", re.ASCII)
# A parameter in a command, whose program may differ between levels.
_LEVEL = re.compile(r"\{[\w-]+\}")
_MOST_LEVELS = 1000
# Characters that remain in a word only if the caller quoted it as a whole: blanks, and quotes within.
_HOLDS_SEVERAL = re.compile(r"""[\s'"\\]""")

# What to type instead of words that look like unknown options.
REPLACEMENTS: Mapping[str, str] = {SEPARATOR: "put the commands after --, e.g. -- ./old --- ./new"}

_SHELL_OPTIONS = frozenset({"-S", "--shell"})
_DEFAULT_SHELL = ("sh",)
# The values of --shell, --ignore-failure, --output and --input that are words.
_NO_SHELL = "none"
_EVERY_STATUS = "all-non-zero"
_INHERIT = "inherit"
NO_INPUT = "null"
# An option cannot have an optional value: `--ignore-failure=STATUSES` is parsed under this hidden name.
IGNORED = "--ignored-statuses"
_IGNORED_STATUSES_OPTION = re.compile(r"(?:--ignore-failure|-i)=(.*)", re.DOTALL)
_COMMA = re.compile(r"(?<!\\),")  # as in --set, a comma in a level is written \,
# How many words hyperfine reads after each of these options.
_VALUE_WORDS = {"-L": 2, "--parameter-list": 2, "-P": 3, "--parameter-scan": 3}


def join_option_words(arguments: Sequence[str]) -> list[str]:
    """Joins the words of options that hyperfine parses in its own way, so that each option takes one word.

    These are `-L NAME VALUES`, `-P NAME FIRST LAST`, and `--ignore-failure` if it has a value.
    """
    joined, rest = [], list(arguments)
    while rest and rest[0] != "--":
        word = rest.pop(0)
        if statuses := _IGNORED_STATUSES_OPTION.fullmatch(word):
            word = f"{IGNORED}={statuses.group(1)}"
        joined.append(word)
        if (count := _VALUE_WORDS.get(word)) and len(rest) >= count and "=" not in rest[0]:
            name, *values = rest[:count]
            del rest[:count]
            joined.append(f"{name}={':'.join(values)}")
    return [*joined, *rest]


@dataclass(frozen=True, slots=True)
class KnownOptions:
    """The options of a verb, by all of their names."""

    verb: str
    # How many words each option takes as its value.
    word_counts: Mapping[str, int]
    # The options that take a number: `-r10` is one of them with its value, `-rf` is not.
    numbers: frozenset[str]

    def is_option(self, word: str) -> bool:
        """Returns whether the word is one of these options, perhaps with its value in the same word."""
        name, equals, _ = word.partition("=")
        if name in self.word_counts and (not equals or self.word_counts[name] == 1):
            return True
        return word[:2] in self.numbers and word[2:].isdecimal()

    def is_known(self, word: str) -> bool:
        """Returns whether the word is one of these options, or several of one letter each."""
        return self.is_option(word) or (not word.startswith("--") and word[:2] in self.word_counts)

    def count_value_words(self, word: str) -> int:
        """Counts the words after the option that are its value."""
        whole = "=" not in word if word.startswith("--") else len(word) == 2
        return self.word_counts.get(word, 1) if whole else 0

    def render_line(self, options: Iterable[str], words: Iterable[str]) -> str:
        """Returns the line to type for these options and that command."""
        typed = [option.replace(f"{IGNORED}=", "-i=") for option in options]
        return shlex.join(["guestmark", self.verb, *typed, "--", *words])


def put_options_first(arguments: Sequence[str], known: KnownOptions) -> list[str]:
    """Joins the words of parameters, and moves all options to the front if each command is one quoted word.

    Raises `UsageError` if the line has two readings: options after the command that could be the verb's or the
    command's, and several words each of which could be a command.
    """
    options: list[str] = []
    commands: list[str] = []
    rest = join_option_words(arguments)
    while rest and rest[0] != "--":
        word = rest.pop(0)
        if not word.startswith("-") or word in {"-", SEPARATOR}:
            if not commands and not find_command_texts([word]):
                words = [word, *rest]
                check_options(arguments, known, (options, words))
                _refuse_ambiguous_words(arguments, known, (options, words))
                return join_option_words(arguments)
            commands.append(word)
            continue
        # How many words an unknown option takes is not known either: the parser refuses it.
        if not known.is_known(word):
            return join_option_words(arguments)
        options.append(word)
        options += _take_words(rest, known.count_value_words(word))
    # A `--` decides where the command begins, so nothing is ambiguous.
    if rest:
        return join_option_words(arguments)
    return [*options, "--", *commands] if commands else options


def _take_words(words: list[str], count: int) -> list[str]:
    taken = words[:count]
    del words[:count]
    return taken


def split_at_command(arguments: Sequence[str], known: KnownOptions) -> tuple[list[str], list[str]]:
    """Splits the arguments into the options and the command, which is empty if `--` stands before it."""
    options: list[str] = []
    rest = join_option_words(arguments)
    while rest and rest[0] != "--":
        word = rest.pop(0)
        if not word.startswith("-") or word in {"-", SEPARATOR}:
            return options, [word, *rest]
        # The parser refuses an unknown option; whatever follows it may be its value.
        if not known.is_known(word):
            break
        options.append(word)
        options += _take_words(rest, known.count_value_words(word))
    return options, []


def check_options(
    arguments: Sequence[str], known: KnownOptions, parts: tuple[list[str], list[str]] | None = None
) -> None:
    """Raises `UsageError` for options of the verb that follow a command without a `--` before it.

    `parts` are the arguments as `split_at_command` returns them, if they have been split already.
    """
    options, words = split_at_command(arguments, known) if parts is None else parts
    own = _find_own_option(words, known)
    if own is not None:
        moved, command = _separate_options(words, known)
        typed = _find_option_as_typed(arguments, own)
        raise UsageError(
            f"{typed} after the command could be guestmark's or the command's",
            hint=f"guestmark's: {known.render_line([*options, *moved], command)}\n"
            f"the command's: {known.render_line(options, _find_words_as_typed(arguments, options))}",
        )


def _find_own_option(words: Sequence[str], known: KnownOptions) -> str | None:
    """Returns the first of the verb's options among these words, up to a `--`."""
    for word in words:
        if word == "--":
            return None
        if known.is_option(word):
            return word
    return None


def _find_option_as_typed(arguments: Sequence[str], option: str) -> str:
    for word in arguments:
        if join_option_words([word]) == [option]:
            return word
    return option


def _refuse_ambiguous_words(
    arguments: Sequence[str], known: KnownOptions, parts: tuple[list[str], list[str]]
) -> None:
    """Raises `UsageError` for words each of which could be a command of its own."""
    options, words = parts
    texts = any(
        option.partition("=")[0] in _SHELL_OPTIONS or option[:2] in _SHELL_OPTIONS for option in options
    )
    if len(words) > 1 and SEPARATOR not in words and (texts or all(map(_may_be_command, words))):
        several: list[str] = []
        for command in split_commands([], words):
            several += [SEPARATOR, *command] if several else command
        raise UsageError(
            f"{shlex.join(words)} could be one command or {len(words)} to compare",
            hint=f"to compare them: {known.render_line(options, several)}\n"
            f"one command: {known.render_line(options, _find_words_as_typed(arguments, options))}",
        )


def _find_words_as_typed(arguments: Sequence[str], options: Sequence[str]) -> Sequence[str]:
    """Returns the command's words as they were typed, before any of them were joined."""
    begin = next(at for at in range(len(arguments)) if join_option_words(arguments[:at]) == options)
    return arguments[begin:]


def _separate_options(words: Sequence[str], known: KnownOptions) -> tuple[list[str], list[str]]:
    """Separates the verb's options among the words, with their values, from the other words."""
    options: list[str] = []
    others: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if not known.is_option(word):
            others.append(word)
            continue
        options.append(word)
        options += _take_words(rest, known.count_value_words(word))
    return options, others


def parse_parameters(
    lists: Iterable[str] | None, scans: Iterable[str] | None, step: str | None, *, machines: bool = True
) -> dict[str, tuple[str, ...]]:
    """Parses `NAME=A,B` and `NAME=FIRST:LAST` into the levels of each parameter. Raises `UsageError`.

    With `machines`, names of factors of machines are refused, because either could be meant.
    """
    levels_by_name: dict[str, tuple[str, ...]] = {}
    for text in lists or ():
        name, _, levels = text.partition("=")
        each = [level.strip().replace("\\,", ",") for level in _COMMA.split(levels)]
        _add_parameter(levels_by_name, name, machines, each)
    for text in scans or ():
        name, _, ends = text.partition("=")
        first, _, last = ends.partition(":")
        _add_parameter(levels_by_name, name, machines, _scan_levels(name, first, last, step))
    if step is not None and not scans:
        raise UsageError("-D requires -P", hint="e.g. -P threads 1 8 -D 2")
    return levels_by_name


def _add_parameter(
    levels_by_name: dict[str, tuple[str, ...]], name: str, machines: bool, levels: Sequence[str]
) -> None:
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{name!r} cannot be a parameter's name", hint="use letters, digits, _ and -, e.g. -L level 1,3,9"
        )
    if machines and is_machine_factor(name):
        raise UsageError(
            f"{name} is a factor of machines", hint=f"--set {name}=… sets it; give the parameter another name"
        )
    if name in levels_by_name or len(set(levels)) < len(levels) or not all(levels):
        raise UsageError(f"parameter {name}: a level is empty or given twice", hint="e.g. -L level 1,3,9")
    levels_by_name[name] = tuple(levels)


def _scan_levels(name: str, first: str, last: str, step: str | None) -> list[str]:
    try:
        # Decimal, because 0.1 + 0.2 must be the level 0.3.
        low, high, by = Decimal(first), Decimal(last), Decimal(step or "1")
    except InvalidOperation as error:
        raise UsageError(
            f"-P {name}: {first}, {last} and {step or 1} are not all numbers", hint="e.g. -P threads 1 8"
        ) from error
    if not all(value.is_finite() for value in (low, high, by)) or by <= 0 or high < low:
        raise UsageError(
            f"-P {name}: there is no level from {first} to {last} in steps of {step or 1}",
            hint="e.g. -P threads 1 8 -D 1",
        )
    # A typing mistake in the step must not make a plan of a million cells.
    if (high - low) / by >= _MOST_LEVELS:
        raise UsageError(
            f"-P {name}: that is more than {_MOST_LEVELS} levels", hint="use a larger step: -D STEP"
        )
    return [str(low + by * number) for number in range(int((high - low) / by) + 1)]


def find_command_texts(argv: Sequence[str]) -> list[str]:
    """Returns the words if each of them is a whole command as hyperfine takes it (`'sleep 0.1' 'sleep 0.2'`).

    Otherwise the list is empty. The words are whole commands in two cases: the first one is not a program but contains
    blanks, quotes or a shell's special characters, and each begins with a program or needs a shell; or there is only
    one, a builtin or a reserved word of the shell.
    """
    if not argv or SEPARATOR in argv or shutil.which(argv[0]):
        return []
    if not _HOLDS_SEVERAL.search(argv[0]) and not has_special_characters(argv[0]):
        # A shell word alone is one command's text; if more words follow, all are one command, as in `! false`.
        return list(argv) if len(argv) == 1 and needs_shell(argv[0]) else []
    return list(argv) if all(map(_starts_with_program, argv)) else []


def is_program(word: str) -> bool:
    """Returns whether the word names a program that can be run from here."""
    return shutil.which(word) is not None


def _starts_with_program(text: str) -> bool:
    """Returns whether a text begins with a program or with something that a shell understands."""
    try:
        words = shlex.split(text)
    except ValueError:
        # An unterminated quotation is a mistake, unless it is syntax that only a shell understands.
        words = text.split()
    if not words:
        return False
    return shutil.which(words[0]) is not None or _LEVEL.search(words[0]) is not None or needs_shell(text)


def _may_be_command(word: str) -> bool:
    """Returns whether one of several words could be a command: a program, or a quoted text that begins with one."""
    if shutil.which(word) is not None:
        return True
    return re.search(r"\s", word) is not None and _starts_with_program(word)


@dataclass(frozen=True, slots=True)
class TypedCommand:
    """A command as it was typed."""

    words: list[str]
    # If a shell runs the command: its text, which is the last word.
    text: str | None = None


def parse_shell(shell: str | None, *, without: bool = False) -> tuple[str, ...] | None:
    """Parses `--shell` into words: no words for no shell, None if each command decides. Raises `UsageError`."""
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


def parse_ignored_statuses(text: str | None) -> tuple[int, ...] | None:
    """Parses the statuses of `--ignore-failure=STATUSES`; empty for every status, None without a value.

    Raises `UsageError`.
    """
    if text is None:
        return None
    if text == _EVERY_STATUS:
        return ()
    try:
        statuses = tuple(int(word) for word in text.split(","))
    except ValueError:
        statuses = (-1,)
    if not all(0 <= status <= 255 for status in statuses):
        raise UsageError(
            f"--ignore-failure={text} does not list exit statuses",
            hint=f"e.g. --ignore-failure=1,2, or {_EVERY_STATUS}",
        )
    return statuses


def parse_commands(
    argv: Sequence[str], texts: Sequence[str] | None, shell: Sequence[str] | None = None
) -> list[TypedCommand]:
    """Parses the commands of `-- A --- B` and of each text, in order. Raises `UsageError`.

    `shell` runs all of them, or none if it is empty; with None, `sh` runs the texts that need a shell.
    """
    commands = []
    for words in _split_at_separator(argv):
        if not shell:
            commands.append(TypedCommand(words))
            continue
        # One word is a text already; several are an argv, whose words must survive the shell.
        text = words[0] if len(words) == 1 else shlex.join(words)
        commands.append(_wrap_in_shell(text, shell))
    for text in texts or ():
        if shell or (shell is None and needs_shell(text)):
            commands.append(_wrap_in_shell(text, shell or _DEFAULT_SHELL))
            continue
        try:
            commands.append(TypedCommand(shlex.split(text)))
        except ValueError as error:
            raise UsageError(
                f"the command {text!r} has an unterminated quotation", hint="close it, as for a shell"
            ) from error
    if any(not command.words or command.text == "" for command in commands):
        raise UsageError("a command is empty", hint="e.g. guestmark exec -- gzip -9 file --- zstd -9 file")
    return commands


def parse_outputs(given: Sequence[str] | None) -> tuple[tuple[StandardOutput, ...], bool]:
    """Parses `--output`: where the commands' output goes, and whether it is shown. Raises `UsageError`."""
    targets, inherit = [], False
    for where in given or ():
        if where == _INHERIT:
            inherit = True
        elif where in set(StandardOutput):
            targets.append(StandardOutput(where))
        else:
            raise UsageError(
                f"--output {where}: must be null, pipe or inherit",
                hint=f"for a file, redirect the output in the command: guestmark exec 'COMMAND >{where}'",
            )
    if inherit and targets:
        raise UsageError("--output inherit applies to all commands", hint="give it alone, or not at all")
    return tuple(targets), inherit


def index_texts(commands: Iterable[TypedCommand]) -> dict[int, str]:
    """Returns the texts of the commands that were typed as one, by their positions."""
    texts = {}
    for number, command in enumerate(commands):
        if command.text is not None:
            texts[number] = command.text
    return texts


def split_commands(argv: Sequence[str], texts: Sequence[str] | None) -> list[list[str]]:
    """Parses the commands as `parse_commands` does, and returns the words of each. Raises `UsageError`."""
    return [command.words for command in parse_commands(argv, texts)]


def _wrap_in_shell(text: str, shell: Sequence[str]) -> TypedCommand:
    return TypedCommand([*shell, "-c", text], text)


def _split_at_separator(argv: Sequence[str]) -> list[list[str]]:
    commands: list[list[str]] = [[]]
    for word in argv:
        if word == SEPARATOR:
            commands.append([])
        else:
            commands[-1].append(word)
    return commands if argv else []
