"""Options, each declared once for the command line, plans, the library and the reference."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Candidates(StrEnum):
    """The kinds of values that shell completion offers; `cli.completion` finds the values on request."""

    CAMPAIGNS = "campaigns"
    FLEET_ACTIONS = "fleet actions"
    FLEET_ARGUMENTS = "fleet arguments"
    LEDGER_ACTIONS = "ledger actions"
    MACHINE_ACTIONS = "machine actions"
    MACHINES = "machines"
    PLANS = "plans"
    PLANS_WORDS = "plans words"
    PLATFORMS = "platforms"
    POWERCUT_WORDS = "powercut words"
    RUNS = "runs"
    SETTINGS = "settings"


@dataclass(frozen=True, slots=True)
class Option:
    """One option. It annotates a field, which gives the type and the default of the value.

    `spelling` holds every name on the command line, separated by blanks; the first one stands in messages.
    `minimum` and `maximum` bound a number. `parse` turns the text into the value and raises `ValueError`.
    `key` is the option's name in `[repetition]` of a plan; an empty one is not for plans. `only_for` names the
    commands that have the option; without any, all that measure have it.
    """

    spelling: str
    help: str = ""
    metavar: str = ""
    minimum: float | None = None
    maximum: float | None = None
    parse: Callable[[str], Any] | None = None
    candidates: Candidates | None = None
    # Variable that gives the value when the option does not.
    environment: str = ""
    hidden: bool = False
    key: str = ""
    only_for: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The name that is used in messages, such as `--time-limit`."""
        return self.spelling.split()[0].partition("/")[0]


@dataclass(frozen=True, slots=True)
class Argument:
    """The positional arguments of a command line. It annotates a field, like `Option`."""

    metavar: str
    help: str = ""
    candidates: Candidates | None = None
