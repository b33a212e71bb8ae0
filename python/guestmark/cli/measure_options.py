"""The options of every command that measures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from guestmark.cli import options
from guestmark.core.errors import UsageError
from guestmark.plan.policy_options import PolicyOptions, choose_budget, collect_given_values


@dataclass(frozen=True, kw_only=True)
class CellOptions:
    """Which cells are measured."""

    baseline: options.Baseline = None
    settings: options.Settings = None
    kernel: options.Kernel = None


@dataclass(frozen=True, kw_only=True)
class ResultOptions:
    """What is done with the result."""

    name: options.Name = None
    note: options.Note = None
    label: options.Labels = None
    tag: options.Tags = None
    keep: options.Keep = False
    fail_if: options.FailIf = None
    junit: options.Junit = None
    prove: options.Prove = False
    details: options.Details = False
    wait: options.Wait = True
    quiet_host: options.QuietHost = False
    json: options.Json = None
    export_json: options.ExportJson = None
    export_csv: options.ExportCsv = None
    export_markdown: options.ExportMarkdown = None
    export_asciidoc: options.ExportAsciidoc = None
    export_orgmode: options.ExportOrgmode = None
    csv: options.Csv = None
    markdown: options.Markdown = None
    html: options.Html = None
    ledger: options.Ledger = None
    quiet: options.Quiet = False


# The order of the bases is that of the help: which cells, how often, and what becomes of the result.
@dataclass(frozen=True, kw_only=True)
class MeasureOptions(CellOptions, PolicyOptions, ResultOptions):
    """Options that every measuring command has."""

    def collect_overrides(self) -> dict[str, Any]:
        """Returns the fields of `plan.outline.Overrides` that were given, by name."""
        given: dict[str, Any] = {
            "settings": add_kernel_setting(self.settings, self.kernel),
            **collect_given_values(self),
        }
        if self.baseline is not None:
            given["baseline"] = self.baseline
        return given

    def refuse_options(self, command: str, *, quiet_host: bool = False, over: bool = False) -> None:
        """Raises `UsageError` for a given `--quiet-host` or `--over` if the `command` cannot do that."""
        if quiet_host and self.quiet_host:
            raise UsageError(
                f"--quiet-host cannot be used with {command}",
                hint="type guestmark quiet on before it, and guestmark quiet off after it",
            )
        if over and self.over_s:
            raise UsageError(f"--over cannot be used with {command}", hint="use it with exec, ab or run")

    def choose_budget(self, asked_s: float | None, planned_s: float | None = None) -> float | None:
        """Returns the wall time of `--for`, else the plan's; see `plan.policy_options.choose_budget`."""
        return choose_budget(asked_s, planned_s, collect_given_values(self))


def add_kernel_setting(settings: list[str] | None, kernel: str | None) -> list[str]:
    """Adds the setting of `--kernel` to the `--set` values."""
    if kernel is None:
        return list(settings or ())
    # A comma separates levels, and may stand in a path.
    return [*(settings or ()), "kernel=" + kernel.replace(",", "\\,")]
