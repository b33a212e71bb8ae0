"""Measures a little of everything, for newcomers."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import cast

from guestmark.cli.commands.tour import Options
from guestmark.cli.measure import measure_plan
from guestmark.cli.outputs import Outputs
from guestmark.core.context import Caller
from guestmark.core.errors import PlatformUnusableError, UsageError
from guestmark.core.model import Plan
from guestmark.core.parallel import report_interrupt
from guestmark.core.platform_spec import parse_platforms
from guestmark.page.say import say
from guestmark.plan import library
from guestmark.plan.load import load_outline
from guestmark.plan.outline import Overrides, assemble_plan, override_outline
from guestmark.platforms import registry
from guestmark.platforms.base import Unusable, Usable
from guestmark.platforms.probe import Startable, probe_all
from guestmark.report.sections.tour import PlatformFinding, make_page

PLAN = "tour"


def run(given: Options) -> int:
    """Finds out which guests work, measures on them, and returns the exit status."""
    findings = _probe_platforms(given.on, quiet=given.quiet)
    usable = [finding.platform for finding in findings if finding.usable]
    if usable == ["host"]:
        unusable = [finding for finding in findings if not finding.usable]
        reasons = "; ".join(f"{finding.platform}: {finding.reason}" for finding in unusable)
        hints = dict.fromkeys(finding.hint for finding in findings if finding.hint)
        raise PlatformUnusableError(
            f"no guest can be started here, so there is nothing to compare ({reasons})", hint="\n".join(hints)
        )
    outputs = Outputs(
        json=given.json,
        markdown=given.markdown,
        html=given.html,
        quiet=given.quiet,
        page=partial(make_page, findings=findings),
    )
    return measure_plan(_build_plan(usable, given.blocks), given.ledger, outputs)


def _probe_platforms(on: list[str] | None, *, quiet: bool) -> list[PlatformFinding]:
    """Finds out which of the requested platforms, or else of the plan's, can be used."""
    wanted = parse_platforms(on) if on else load_outline(*library.find_plan(PLAN)).shape.platforms
    names = list(dict.fromkeys(["host", *(str(platform) for platform in wanted)]))
    if names == ["host"]:
        raise UsageError("a tour compares guests with the host", hint="e.g. --on uml,tcg")
    if not quiet:
        say(f"finding out which of {', '.join(names)} can be used here …")
    host = registry.get_platform("host")
    guests = cast("list[Startable]", [registry.get_platform(name) for name in names if name != "host"])
    results: dict[str, Usable | Unusable] = {host.name: host.probe()}
    with report_interrupt(say):
        results |= probe_all(guests)
    return [_make_platform_finding(name, results[name]) for name in names]


def _make_platform_finding(name: str, result: Usable | Unusable) -> PlatformFinding:
    if isinstance(result, Unusable):
        return PlatformFinding(name, usable=False, reason=result.reason, hint=result.hint)
    return PlatformFinding(name, usable=True, ready_s=result.ready_s)


def _build_plan(usable: list[str], blocks: int | None) -> Plan:
    outline = load_outline(*library.find_plan(PLAN))
    plan = assemble_plan(override_outline(outline, Overrides(on=usable, blocks=blocks)), Caller.current())
    # The plan's notes only state the obvious: nothing boots on the host, and no file is sent into it.
    return replace(plan, context=replace(plan.context, notes=()))
