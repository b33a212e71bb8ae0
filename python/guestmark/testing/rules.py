"""The rules of the contract, and functions that its checks share."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from importlib.metadata import entry_points
from types import ModuleType
from typing import TypeVar

from guestmark.core import discovery
from guestmark.core.errors import (
    GuestmarkError,
    MachineError,
    PlatformUnusableError,
    WorkloadError,
)

T = TypeVar("T")
_COSTLY = ("pydantic", "sqlalchemy", "numpy", "scipy", "polars")
TYPED = (MachineError, WorkloadError, PlatformUnusableError)


class Rule(StrEnum):
    """One rule of the contract between guestmark and an extension."""

    # The extension is found by name, and everything that its description names can be imported.
    DESCRIBED = "described"
    # Importing the description imports nothing costly.
    CHEAP = "cheap"
    # Parameters are checked, and read back from the ledger.
    PARAMETERS = "parameters"
    # All declared metrics are measured, and no others.
    METRICS = "metrics"
    MEASURED = "measured"  # a trial succeeds
    # Every failure raises one of guestmark's errors.
    TYPED = "typed errors"
    # An iteration ends within its time limit.
    LIMIT = "limit"
    # A level that is accepted is used, and attested.
    FACTORS = "factors"
    STARTED = "started"  # a machine has all members of `platforms.base.Machine`
    # A machine's attestation returns facts that the ledger keeps.
    ATTESTED = "attested"
    # A machine leaves nothing behind, however it ends.
    ENDED = "ended"
    # A run that is interrupted ends soon, and leaves nothing.
    INTERRUPTED = "interrupted"


@dataclass(frozen=True, slots=True)
class Violation:
    """A violation of the contract: the rule, the observation, and a remedy."""

    rule: Rule
    what: str
    hint: str = ""

    def __str__(self) -> str:
        if not self.hint:
            return f"{self.rule}: {self.what}"
        return f"{self.rule}: {self.what}\n  {self.hint}"


def make_not_found_violation(error: Exception) -> Violation:
    """Return the violation for an unknown name."""
    return Violation(
        Rule.DESCRIBED, str(error), f"declare an entry point for it in the group {discovery.ENTRY_POINTS}"
    )


def check_loading(text: str, loaders: Mapping[str, Callable[[], object]]) -> Iterator[Violation]:
    """Yield violations unless a description's help is one line, and its loaders can import what they return."""
    if not text or "\n" in text:
        yield Violation(Rule.DESCRIBED, "help is not one line", "describe it in a few words")
    for name, load in loaders.items():
        try:
            load()
        # Extensions may raise anything.
        except Exception as error:
            yield Violation(
                Rule.DESCRIBED, f"{name} cannot be imported: {error!r}", "import the class and return it"
            )


def check_import_cost(describes: Callable[[ModuleType], bool], modules: Iterable[str]) -> Iterator[Violation]:
    """Import, in a separate process, the module of the entry point that `describes` it; yield costly imports."""
    entries = entry_points(group=discovery.ENTRY_POINTS)
    module = next((entry.value for entry in entries if describes(entry.load())), None)
    if module is None:  # guestmark's own
        return
    order = f"import sys, json, {module}; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", order],
        env=build_module_environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    imported = set(json.loads(done.stdout))
    for costly in (*modules, *_COSTLY):
        if costly in imported and costly != module:
            yield Violation(
                Rule.CHEAP,
                f"importing {module} imports {costly}",
                "import it in the function of the description that returns the class",
            )


def run_guarded(what: str, action: Callable[[], T]) -> tuple[T | None, list[Violation]]:
    """Return the result of `action`, or a violation if it raises any error, one of guestmark's or another."""
    try:
        return action(), []
    except GuestmarkError as error:
        return None, [Violation(Rule.MEASURED, f"{what} failed: {error.message}", error.hint)]
    # Extensions may raise anything.
    except Exception as error:
        return None, [make_untyped_error_violation(what, error)]


def collect_violations(what: str, check: Iterable[Violation]) -> list[Violation]:
    """Return all violations that a check finds, or one violation if the check itself fails."""
    found, broken = run_guarded(what, lambda: list(check))
    return broken if found is None else found


def make_untyped_error_violation(what: str, error: Exception) -> Violation:
    """Return the violation for an error that trials do not expect, and that would end the whole run."""
    return Violation(
        Rule.TYPED, f"{what} raised {error!r}", "raise WorkloadError, MachineError or PlatformUnusableError"
    )


def build_module_environment() -> dict[str, str]:
    """Return an environment in which a child process can import the same modules."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
