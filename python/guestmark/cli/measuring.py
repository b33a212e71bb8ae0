"""The options of every command that measures, defined once and shared by `exec`, `run` and the others."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from guestmark.cli import options
from guestmark.core.errors import UsageError
from guestmark.page.say import say, tell
from guestmark.plan.policy_options import check_conflicts

if TYPE_CHECKING:
    from guestmark.cli.session import Outputs
    from guestmark.core.model import Plan


LIST = "Show the cells that would run and how long they take; run nothing."


@dataclass(frozen=True, slots=True, kw_only=True)
class Measuring:
    """The options as typed; the fields' remarks say what `--help` says."""

    baseline: options.Baseline = None
    settings: options.Settings = None
    kernel: options.Kernel = None
    null: options.NullCopies = None
    blocks: options.Blocks = None
    precision: options.Precision = None
    find: options.Find = None
    over: options.Over = None
    time_limit: options.TimeLimit = None
    trial_limit: options.TrialLimit = None
    margin: options.Margin = None
    warmup: options.Warmup = None
    iterations: options.Iterations = None
    seed: options.Seed = None
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

    def overrides(self) -> dict[str, Any]:
        """The fields of `plan.outline.Overrides` by name, parsed. Raises `UsageError` naming the option."""
        from guestmark.core.rare import Rare
        from guestmark.core.units import parse_fraction

        return {
            "baseline": self.baseline,
            "settings": options.with_kernel(self.settings, self.kernel),
            "null": self.null,
            "blocks": self.blocks,
            "precision": options.value("--precision", parse_fraction, self.precision),
            "margin": options.value("--margin", parse_fraction, self.margin),
            "find": options.value("--find", Rare.parse, self.find),
            "over_s": options.positive_duration("--over", self.over),
            "time_limit_s": options.positive_duration("--time-limit", self.time_limit),
            "trial_limit_s": options.positive_duration("--trial-limit", self.trial_limit),
            "warmup": self.warmup,
            "iterations": self.iterations,
            "seed": self.seed,
        }

    def refuse(self, where: str, *, quiet_host: bool = False, over: bool = False) -> None:
        """Raises `UsageError` for `--quiet-host` or `--over` where the named kind of command cannot do that."""
        for option, given in (
            ("--quiet-host", quiet_host and self.quiet_host),
            ("--over", over and self.over),
        ):
            if given:
                hint = (
                    "guestmark quiet on, until off"
                    if option == "--quiet-host"
                    else "use it with exec, ab or run"
                )
                raise UsageError(f"{option} is not for {where}", hint=hint)

    def outputs(self, *, published: bool = False, show_output: bool = False) -> Outputs:
        """Where the result goes."""
        from guestmark.cli.session import Outputs
        from guestmark.report.export_format import Format

        return Outputs(
            json=self.json,
            exports={
                form: path
                for form, path in (
                    (Format.HYPERFINE, self.export_json),
                    (Format.HYPERFINE_CSV, self.export_csv),
                    (Format.HYPERFINE_MARKDOWN, self.export_markdown),
                    (Format.HYPERFINE_ASCIIDOC, self.export_asciidoc),
                    (Format.HYPERFINE_ORGMODE, self.export_orgmode),
                )
                if path is not None
            },
            csv=self.csv,
            markdown=self.markdown,
            quiet=self.quiet,
            html=self.html,
            published=published,
            show_output=show_output,
            keep=self.keep,
            gates=tuple(self.fail_if or ()),
            junit=self.junit,
            said=options.remarks(self.name, self.note, self.label, self.tag),
            prove=self.prove,
            details=self.details,
            wait=self.wait,
            quiet_host=self.quiet_host,
        )


def budgeted(text: str | None, given: Measuring) -> float | None:
    """The seconds of `--for`. Raises `UsageError` beside another limit."""
    seconds = options.positive_duration("--for", text)
    if seconds is not None:
        others = {name: value for name, value in given.overrides().items() if value is not None}
        check_conflicts({"budget_s": seconds, **others})
    return seconds


def measuring(command: Callable[..., None]) -> Callable[..., None]:
    """Gives a command the options of `Measuring` in place of its keyword parameter `given`, but for its own."""
    signature = inspect.signature(command, eval_str=True)
    every = inspect.signature(Measuring, eval_str=True).parameters
    shared = {name: option for name, option in every.items() if name not in signature.parameters}
    parameters = [
        each
        for name, parameter in signature.parameters.items()
        for each in (shared.values() if name == "given" else [parameter])
    ]

    @functools.wraps(command)
    def wrapper(**typed: Any) -> None:
        given = Measuring(**{name: typed.pop(name) for name in shared})
        command(**typed, given=given)

    wrapper.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    wrapper.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    del wrapper.__wrapped__
    return wrapper


def show_cells(plan: Plan, ledger_path: str | None) -> None:
    """Prints the cells that can run here on standard output, one per line, and remarks on standard error.

    Nothing is started to find out. Raises as a run does that could measure nothing.
    """
    from guestmark.core.units import counted
    from guestmark.engine import preflight
    from guestmark.engine.time_estimate import estimate_time

    ready = preflight.examine_without_starting(plan)
    plan = replace(ready.plan, cells=ready.cells)
    for cell in plan.cells:
        marks = ["baseline"] if cell.baseline else []
        marks += [f"null copy of {cell.null_of}"] if cell.null_of else []
        tell(f"{cell.id}{f'  # {marks[0]}' if marks else ''}")
    sys.stdout.flush()
    if usual := _unsaid(plan):
        say(f"defaults of all cells: {usual}")
    for note in (*plan.context.notes, *ready.notes):
        say(note)
    alike: dict[str, list[str]] = {}
    for entry in ready.left_out:
        alike.setdefault(entry.reason, []).append(entry.cell or entry.name)
    for reason, names in alike.items():
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        say(f"{names[0]}{more} cannot be measured here: {reason}")
    with options.ledger_to_read(ledger_path) as ledger:
        found = estimate_time(plan, ledger)
    origin = f" ({found.origin})" if found.origin else ""
    say(f"{counted(len(plan.cells), 'cell')}: {found.expectation}{origin}")


def _unsaid(plan: Plan) -> str:
    """The factors at the levels that ids leave out."""
    found = {
        f"{name}={level}": None
        for cell in plan.cells
        for name, level in cell.factors.items()
        if f"{name}={level}" not in (cell.null_of or cell.id).split()
    }
    return " ".join(found)
