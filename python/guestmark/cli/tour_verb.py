"""`guestmark tour`: a little of everything, for newcomers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from guestmark.cli import options
from guestmark.core.errors import PlatformUnusableError, UsageError
from guestmark.page.say import say

if TYPE_CHECKING:
    from guestmark.core.model import Plan
    from guestmark.ledger.model import StoredRun
    from guestmark.page.nodes import Page
    from guestmark.report.sections.tour import PlatformFinding

PLAN = "tour"


def command(
    *,
    on: Annotated[
        list[str] | None,
        options.on("Which guests to compare with the host, instead of all that work here."),
    ] = None,
    blocks: options.Blocks = None,
    json: options.Json = None,
    markdown: options.Markdown = None,
    html: options.Html = None,
    ledger: options.Ledger = None,
    quiet: options.Quiet = False,
) -> None:
    """See what virtualization costs here, roughly, in one to three minutes.

    Finds out which platforms work, measures one small thing of each kind on them (computing, system calls, memory, a
    disk, the start of a guest, a file sent into it), and suggests what to run next. It is the plan `tour`, kept in the
    ledger like any run.

    Exit status: 0 all measured, 1 some trials failed, 2 the command line is wrong, 3 nothing could be measured, 130
    interrupted (guestmark resume continues).
    """
    from guestmark.cli import session
    from guestmark.report.sections.tour import make_page

    findings = _findings(on, quiet)
    usable = [finding.platform for finding in findings if finding.usable]
    if usable == ["host"]:
        told = "; ".join(f"{one.platform}: {one.reason}" for one in findings if not one.usable)
        hints = dict.fromkeys(one.hint for one in findings if one.hint)
        raise PlatformUnusableError(
            f"no guest can be started here, so there is nothing to compare ({told})", hint="\n".join(hints)
        )

    def tour_page(run: StoredRun) -> Page:
        return make_page(run, findings)

    outputs = session.Outputs(json=json, markdown=markdown, html=html, quiet=quiet, page=tour_page)
    raise typer.Exit(session.execute(_plan(usable, blocks), ledger, outputs))


def _findings(on: list[str] | None, quiet: bool) -> list[PlatformFinding]:
    """What can be used of the platforms that were asked for, or of all."""
    from typing import cast

    from guestmark.core.beside import told
    from guestmark.core.platform_spec import parse_platforms
    from guestmark.plan import library
    from guestmark.plan.load import load_outline
    from guestmark.platforms import registry
    from guestmark.platforms.base import Unusable, Usable
    from guestmark.platforms.probe import Startable, probe_all
    from guestmark.report.sections.tour import PlatformFinding

    wanted = parse_platforms(on) if on else load_outline(*library.find_plan(PLAN)).shape.platforms
    names = list(dict.fromkeys(["host", *(str(one) for one in wanted)]))
    if names == ["host"]:
        raise UsageError("a tour compares guests with the host", hint="e.g. --on uml,tcg")
    if not quiet:
        say(f"finding out which of {', '.join(names)} can be used here …")
    platforms = [registry.get_platform(name) for name in names]
    found: dict[str, Usable | Unusable] = {
        platform.name: platform.probe() for platform in platforms if platform.name == "host"
    }
    with told(say):
        found |= probe_all(cast("list[Startable]", [one for one in platforms if one.name != "host"]))
    return [
        PlatformFinding(name, usable=False, reason=result.reason, hint=result.hint)
        if isinstance(result := found[name], Unusable)
        else PlatformFinding(name, usable=True, ready_s=result.ready_s)
        for name in names
    ]


def _plan(usable: list[str], blocks: int | None) -> Plan:
    from dataclasses import replace

    from guestmark.core.context import Caller
    from guestmark.plan import library
    from guestmark.plan.load import load_outline
    from guestmark.plan.outline import Overrides, assemble_plan, override_outline

    outline = load_outline(*library.find_plan(PLAN))
    plan = assemble_plan(override_outline(outline, Overrides(on=usable, blocks=blocks)), Caller.current())
    # The host is not started and no files are sent into it: nothing to tell the reader.
    return replace(plan, context=replace(plan.context, notes=()))
