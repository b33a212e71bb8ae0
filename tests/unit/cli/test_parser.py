"""Commands are built from their declarations: what stands on the command line, and what the command gets."""

import importlib
import inspect
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, get_type_hints

import click
import pytest

from guestmark.cli.measure_options import MeasureOptions
from guestmark.cli.parser import Verb, build_command, derive_module_name, list_declared_fields
from guestmark.cli.verbs import VERBS
from guestmark.core.errors import UsageError
from guestmark.core.option import Argument, Option
from guestmark.plan.policy_options import list_policy_options
from tests.framework.preloaded import call as guestmark


class Colour(StrEnum):
    """Choices."""

    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True, kw_only=True)
class Options:
    """A command of the tests."""

    files: Annotated[list[str] | None, Argument("FILE...", "What to read.")] = None
    pair: Annotated[tuple[str, str] | None, Option("--pair", "Two words.", "A B")] = None
    colour: Annotated[Colour, Option("--colour -c", "A colour.")] = Colour.RED
    count: Annotated[int | None, Option("--count -n", "A number.", "N", minimum=1)] = None
    level: Annotated[float | None, Option("--level", "Text that is a number.", parse=float)] = None
    quiet: Annotated[bool, Option("--quiet/--loud", "Say nothing.")] = True


def values_of(*words: str) -> dict[str, object]:
    with Verb("tested", Options, options_first=False).make_context("tested", list(words)) as context:
        return context.params


def test_values_have_the_types_of_the_fields() -> None:
    assert Options(**values_of()) == Options()  # type: ignore[arg-type]
    typed = values_of("a", "b", "--pair", "x", "y", "-c", "blue", "-n", "3", "--level", "0.5", "--loud")
    assert typed == {
        "files": ["a", "b"], "pair": ("x", "y"), "colour": Colour.BLUE, "count": 3, "level": 0.5, "quiet": False,
    }  # fmt: skip
    assert isinstance(typed["colour"], Colour)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("-n", "0"), "0 is less than 1"),
        (("-n", "x"), "'x' is not a whole number"),
        (("-c", "green"), "'green' is not one of 'red', 'blue'"),
    ],
)
def test_what_does_not_fit_is_refused(words: tuple[str, ...], message: str) -> None:
    with pytest.raises(click.BadParameter, match=message):
        values_of(*words)


def test_a_parser_of_ours_names_its_option() -> None:
    with pytest.raises(UsageError, match="--level: could not convert"):
        values_of("--level", "high")


def test_an_option_of_its_own_takes_the_place_of_a_shared_one() -> None:
    ab = importlib.import_module("guestmark.cli.commands.ab")
    fields = {field.name for field in list_declared_fields(ab.Options, "ab")}
    assert "kernels" in fields
    assert "kernel" not in fields  # both are called --kernel


def test_options_of_few_commands_are_declared_for_these() -> None:
    names = {field.name for field in list_declared_fields(MeasureOptions, "boot")}
    assert "blocks" in names
    assert not {name for name, option in list_policy_options().items() if option.only_for} & names


@pytest.mark.parametrize("verb", VERBS)
def test_what_a_verb_does_takes_what_it_declares(verb: str) -> None:
    name = derive_module_name(verb)
    options = importlib.import_module(f"guestmark.cli.commands.{name}").Options
    run = importlib.import_module(f"guestmark.cli.do.{name}").run
    (parameter,) = inspect.signature(run).parameters.values()
    assert parameter.annotation == "Options"
    assert inspect.signature(run).return_annotation == "int"
    command = build_command(verb)
    assert {parameter.name for parameter in command.params} <= set(get_type_hints(options))


def test_scripts_that_an_earlier_version_has_installed_still_complete() -> None:
    asked = {"_GUESTMARK_COMPLETE": "complete_fish", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    shown = guestmark(**asked, _TYPER_COMPLETE_ARGS="guestmark camp")
    assert shown.stdout.startswith("campaign\t")
