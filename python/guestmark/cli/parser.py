"""Builds Click's commands from their declarations.

A command is declared by the dataclass `Options` of its module in `cli.commands`: each field is annotated with an
`Option` or an `Argument`. What it does is the function `run` of the module with the same name in `cli.do`, which is
imported when the command runs and gets the filled-in `Options`.
"""

from __future__ import annotations

import dataclasses
import gc
import importlib
import itertools
import keyword
import math
from collections.abc import Iterator, Sequence
from enum import StrEnum
from functools import partial
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import click
from click.shell_completion import CompletionItem

from guestmark.cli.examples import render_examples
from guestmark.cli.hyperfine import KnownOptions
from guestmark.core.errors import UsageError
from guestmark.core.option import Argument, Candidates, Option

_HELP_NAMES = ("-h", "--help")


def derive_module_name(verb: str) -> str:
    """Returns the name of the modules that declare and run a verb; `import` cannot name one."""
    return f"{verb}_" if keyword.iskeyword(verb) else verb


def build_command(verb: str) -> Verb:
    """Builds the command of a verb from its declaration."""
    module = importlib.import_module(f"guestmark.cli.commands.{derive_module_name(verb)}")
    return Verb(verb, module.Options, options_first=getattr(module, "OPTIONS_FIRST", False))


# Key in `click.Context.meta` of the words after the verb, up to a measured command.
_TYPED = "guestmark.typed"


class Verb(click.Command):
    """A verb. No option that takes one value may be given twice, and the help ends with examples."""

    def __init__(self, verb: str, options: type, *, options_first: bool) -> None:
        super().__init__(
            verb,
            params=[_build_parameter(field) for field in list_declared_fields(options, verb)],
            callback=partial(_run_verb, verb, options),
            help=options.__doc__,
            context_settings={
                "help_option_names": _HELP_NAMES,
                # Words after a measured command belong to it, even if they look like options.
                "allow_interspersed_args": not options_first,
            },
        )

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Ends the help with lines to type."""
        if lines := render_examples(self.name or ""):
            formatter.write("\n" + "\n".join(lines) + "\n")

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parses the words after the verb. Raises `UsageError` for an option that would replace an earlier one."""
        ctx.meta[_TYPED] = tuple(itertools.takewhile(lambda word: word != "--", args))
        # Click silently lets the last one win, so that a run would ignore a part of its command line.
        if not ctx.resilient_parsing:
            _, _, order = self.make_parser(ctx).parse_args(args=list(args))
            seen: set[str] = set()
            for parameter in order:
                if not isinstance(parameter, click.Option) or parameter.is_flag or parameter.multiple:
                    continue
                name = parameter.name or ""
                if name in seen:
                    raise UsageError(f"{' or '.join(parameter.opts)} is given twice", hint="give it once")
                seen.add(name)
        return super().parse_args(ctx, args)


def _run_verb(verb: str, options: type, **values: Any) -> int:
    """Runs a verb with the values that were parsed; returns its exit status."""
    module = importlib.import_module(f"guestmark.cli.do.{derive_module_name(verb)}")
    # `main` has disabled it while modules are loaded; what was loaded stays for good.
    gc.freeze()
    gc.enable()
    # Parameters that the verb does not have keep the defaults of their fields.
    status: int = module.run(options(**values))
    return int(status)


@dataclasses.dataclass(frozen=True, slots=True)
class DeclaredField:
    """A field of a declaration: its name, the type of its value, its default, and what it is on the command line."""

    name: str
    value_type: Any
    default: Any
    required: bool
    declared: Option | Argument


def list_declared_fields(options: type, verb: str) -> Iterator[DeclaredField]:
    """Lists the fields of a declaration that a verb has, its own first, then those that it shares.

    An option of its own takes the place of a shared one that has the same name on the command line.
    """
    hints = get_type_hints(options, include_extras=True)
    every = {field.name: field for field in dataclasses.fields(options)}
    taken: set[str] = set()
    for owner in options.__mro__:
        spelled: set[str] = set()
        for name in vars(owner).get("__annotations__", {}):
            field = every.pop(name, None)
            if field is None:
                continue
            value_type, declared = get_args(hints[name])[:2]
            if isinstance(declared, Option):
                names = set(declared.spelling.split())
                if taken & names or (declared.only_for and verb not in declared.only_for):
                    continue
                spelled |= names
            required = field.default is dataclasses.MISSING
            yield DeclaredField(name, value_type, None if required else field.default, required, declared)
        taken |= spelled


def _build_parameter(field: DeclaredField) -> click.Parameter:
    value_type, several = _unwrap_type(field.value_type)
    declared, default = field.declared, field.default
    if isinstance(default, StrEnum):
        # Click's choices are strings: for an enumeration it would offer the names of the members.
        default = str(default)
    common: dict[str, Any] = {
        "type": _choose_click_type(value_type, declared),
        "required": field.required,
        "metavar": declared.metavar or None,
        "help": declared.help,
        "callback": partial(_convert_value, declared, value_type, several),
    }
    # For Click, None is a default value, which a required parameter must not have.
    if not field.required:
        common["default"] = default
    if declared.candidates is not None:
        common["shell_complete"] = partial(_complete_value, declared.candidates)
    if isinstance(declared, Argument):
        if not field.required and " " not in declared.metavar and not declared.metavar.startswith("["):
            common["metavar"] = f"[{declared.metavar}]"
        return click.Argument([field.name], nargs=-1 if several else 1, **common)
    if value_type is bool:
        common |= {"is_flag": True, "type": click.BOOL}
    if get_origin(value_type) is tuple:
        common["nargs"] = len(get_args(value_type))
    if is_subclass(value_type, StrEnum):
        common["metavar"] = declared.metavar or f"<{'|'.join(value_type)}>"
    return _NamedOption(
        [*declared.spelling.split(), field.name],
        multiple=several,
        hidden=declared.hidden,
        envvar=declared.environment or None,
        show_envvar=bool(declared.environment),
        show_default=default not in {None, "", False},
        **common,
    )


def _check_bounds(
    value: float,
    bounds: tuple[float | None, float | None],
    parameter: click.Parameter | None,
    ctx: click.Context | None,
) -> None:
    """Raises `click.BadParameter` for a number outside the bounds; a bound of None is no bound."""
    low, high = bounds
    if low is not None and value < low:
        raise click.BadParameter(f"{value:g} is less than {low:g}", ctx=ctx, param=parameter)
    if high is not None and value > high:
        raise click.BadParameter(f"{value:g} is more than {high:g}", ctx=ctx, param=parameter)


class _WholeNumber(click.IntRange):
    """A whole number between bounds; errors describe it in plain words."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Converts the text. Raises `click.BadParameter`."""
        try:
            number = int(value)
        except ValueError:
            self.fail(f"{value!r} is not a whole number", param, ctx)
        _check_bounds(number, (self.min, self.max), param, ctx)
        return number


class _Number(click.FloatRange):
    """A number between bounds; errors describe it in plain words."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Converts the text. Raises `click.BadParameter`."""
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if math.isnan(number):
            self.fail(f"{value!r} is not a number", param, ctx)
        _check_bounds(number, (self.min, self.max), param, ctx)
        return number


class _NamedOption(click.Option):
    """An option that errors call by the name that was typed, or by its first name if none was."""

    def get_error_hint(self, ctx: click.Context | None) -> str:
        """Returns the name in quotes, as it stands in a sentence."""
        return f"'{find_typed_name(self, ctx)}'"


def find_typed_name(option: click.Parameter, ctx: click.Context | None) -> str:
    """Returns the name of an option that was typed, for instance `-r` for `-r3`; else its first name."""
    for word in ctx.meta.get(_TYPED, ()) if ctx else ():
        name = word.partition("=")[0]
        if name in option.opts:
            return str(name)
        if not word.startswith("--") and word[:2] in option.opts:
            return str(word[:2])
    return option.opts[0]


def _unwrap_type(annotation: Any) -> tuple[Any, bool]:
    """Returns the type of one value, and whether there may be several."""
    if get_origin(annotation) in {Union, UnionType}:
        (annotation,) = [part for part in get_args(annotation) if part is not type(None)]
    if get_origin(annotation) is list:
        return get_args(annotation)[0], True
    return annotation, False


def is_subclass(candidate: Any, parent: type) -> bool:
    """Returns whether `candidate` is a class at all, and derived from `parent`."""
    return isinstance(candidate, type) and issubclass(candidate, parent)


def _choose_click_type(value_type: Any, declared: Option | Argument) -> Any:
    if isinstance(declared, Option) and declared.parse is not None:
        return click.STRING
    if is_subclass(value_type, StrEnum):
        return click.Choice(list(map(str, value_type)))
    bounds: dict[str, Any] = {}
    if isinstance(declared, Option):
        bounds = {"min": declared.minimum, "max": declared.maximum}
    number_types: dict[Any, Any] = {int: _WholeNumber, float: _Number}
    return number_types[value_type](**bounds) if value_type in number_types else click.STRING


def _convert_value(
    declared: Option | Argument,
    value_type: Any,
    several: bool,
    _ctx: click.Context,
    parameter: click.Parameter,
    value: Any,
) -> Any:
    """Converts the value to the declared type, None if it was not given. Raises `UsageError` naming the option."""
    if value is None or (several and not value):
        return None
    if several:
        return list(value)
    if is_subclass(value_type, StrEnum):
        return value_type(value)
    if isinstance(declared, Option) and declared.parse is not None and isinstance(value, str):
        try:
            return declared.parse(value)
        except ValueError as error:
            name = find_typed_name(parameter, click.get_current_context())
            raise UsageError(f"{name}: {error}") from error
    return value


def _complete_value(
    candidates: Candidates, ctx: click.Context, _parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    # Only completion needs the modules that find candidates, such as the ledger.
    completion = importlib.import_module("guestmark.cli.completion")
    found: Sequence[str | tuple[str, str]] = completion.find_candidates(candidates, ctx.params, incomplete)
    items = []
    for candidate in found:
        value, described = candidate if isinstance(candidate, tuple) else (candidate, None)
        if value.startswith(incomplete):
            items.append(CompletionItem(value, help=described))
    return items


def collect_known_options(command: click.Command) -> KnownOptions:
    """Collects the options of a verb by name, with those that ask for help."""
    # Click adds these to every command only when it parses.
    word_counts: dict[str, int] = dict.fromkeys(_HELP_NAMES, 0)
    numbers: set[str] = set()
    for parameter in command.params:
        if not isinstance(parameter, click.Option):
            continue
        names = {*parameter.opts, *parameter.secondary_opts}
        word_counts |= dict.fromkeys(names, 0 if parameter.is_flag else parameter.nargs)
        if isinstance(parameter.type, click.IntRange):
            numbers |= names
    return KnownOptions(command.name or "", word_counts, frozenset(numbers))
