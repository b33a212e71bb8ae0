"""What the actions of `guestmark fleet` do."""

from __future__ import annotations

import json as json_module
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from guestmark.core.context import FleetOrder
from guestmark.core.errors import ExitStatus
from guestmark.core.units import counted
from guestmark.page.say import erase, redraw, say
from guestmark.page.text import escaped_in_json

if TYPE_CHECKING:
    from guestmark.fleet.coordinator import Fleet, State
    from guestmark.fleet.lab import Member
    from guestmark.ledger.postgres import Room
    from guestmark.ledger.store import Ledger

_TELL_S = 30.0


@dataclass(frozen=True, slots=True)
class Outputs:
    """Where results go, as typed."""

    json: str | None
    markdown: str | None
    html: str | None
    quiet: bool


@dataclass(frozen=True, slots=True)
class OwnPlan:
    """The text of a plan that is not a file."""

    text: str


def plan_of(command: Sequence[str]) -> OwnPlan:
    """The plan that measures one command, on each machine's own system unless told otherwise."""
    words = ", ".join(json_module.dumps(word) for word in command)
    return OwnPlan(
        'schema = "guestmark-plan/2"\nname = "exec"\ntitle = "What does the command take?"\nplatforms = ["host"]\n'
        f"[workloads.exec.params]\ncommand = [{words}]\n"
    )


@dataclass(frozen=True, slots=True)
class Wanted:
    """A plan's name or file, by what its sizes are multiplied, and the fields of `plan.outline.Overrides` given."""

    plan: str | OwnPlan
    scale: float
    overrides: Mapping[str, Any]
    whole: bool = False


def run(wanted: Wanted, machines: str, ledger_path: str | None, outputs: Outputs) -> int:
    """A new fleet, to its end; the exit status."""
    from guestmark.fleet import lab, order, parsl_engine
    from guestmark.ledger import open_ledger

    parsl_engine.check()
    members = lab.read(machines)
    from guestmark.plan import library

    own = wanted.plan
    text, where = (own.text, "fleet exec") if isinstance(own, OwnPlan) else library.find_plan(own)
    made = order.new(text, where, wanted.scale, wanted.overrides, members, whole=wanted.whole)
    url = order.reachable(ledger_path, members)
    with open_ledger(ledger_path) as ledger:
        return _coordinate(made, members, ledger, url, outputs)


def resume(wanted: str, machines: str | None, ledger_path: str | None, outputs: Outputs) -> int:
    """An earlier fleet from where its runs end; the exit status."""
    from guestmark.fleet import lab, order, parsl_engine
    from guestmark.ledger import open_ledger

    parsl_engine.check()
    with open_ledger(ledger_path) as ledger:
        made = order.kept(ledger, order.named(ledger, wanted))
        members = lab.loaded(made.lab) if machines is None else lab.read(machines)
        return _coordinate(made, members, ledger, order.reachable(ledger_path, members), outputs)


def show(wanted: str, ledger_path: str | None, outputs: Outputs) -> int:
    """Results by machine; the exit status."""
    from guestmark.fleet import order
    from guestmark.ledger import open_ledger

    with open_ledger(ledger_path, writable=False) as ledger:
        _write(ledger, order.named(ledger, wanted), outputs)
    return int(ExitStatus.ALL_MEASURED)


def _coordinate(
    made: FleetOrder, members: Sequence[Member], ledger: Ledger, url: str, outputs: Outputs
) -> int:
    from guestmark.fleet.coordinator import Fleet, conduct
    from guestmark.ledger.postgres import room_for

    view = _View(outputs.quiet)
    note = view.note
    ledger.patience.notice = note
    if (room := room_for(ledger, len(members))) is not None and not room.is_enough:
        said, advice = too_little_room(room, len(members))
        note(f"{said}\n  {advice}")
    if not outputs.quiet:
        say(f"{made.fleet}: {counted(len(members), 'machine')}; Ctrl-C stops it, and guestmark "
            f"fleet resume {made.fleet} continues")  # fmt: skip
    fleet = Fleet(made, members, ledger, url, tell=note, look=view.look)
    interrupted = conduct(fleet)
    if interrupted:
        say(f"stopped; guestmark fleet resume {made.fleet} continues")
    if any(state.progress.trials for state in fleet.states.values()):
        _write(ledger, made.fleet, outputs)
    return int(ExitStatus.INTERRUPTED if interrupted else fleet.status)


def too_little_room(room: Room, machines: int) -> tuple[str, str]:
    """What is wrong when a ledger's server takes fewer connections than a fleet needs, and what to do."""
    count = "1 machine needs" if machines == 1 else f"{machines} machines need"
    return (
        f"the ledger's server has {room.free} of {room.most} connections left, and {count} {room.needed}",
        f"set max_connections = {room.advised} in its postgresql.conf and restart it",
    )


class _View:
    """How the machines are doing: kept up to date on a terminal, else told now and then."""

    def __init__(self, quiet: bool) -> None:
        self._quiet = quiet
        self._terminal = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self._told = time.monotonic()
        self._shown = 0

    def look(self, fleet: Fleet) -> None:
        """Called twice a second."""
        if self._quiet:
            return
        now, states = time.monotonic(), list(fleet.states.values())
        if self._terminal:
            columns, rows = os.get_terminal_size(2)
            lines = [line[: columns - 1] for line in _lines(states, max(2, rows - 2))]
            redraw(lines, self._shown)
            self._shown = len(lines)
        elif now - self._told >= _TELL_S:
            self._told = now
            trials = sum(state.progress.trials for state in states)
            say(
                f"{counted(trials, 'trial')} so far; {_done(states)} of {counted(len(states), 'machine')} done"
            )

    def note(self, text: str) -> None:
        """Says something, above the machines where these are shown."""
        if self._shown:
            erase(self._shown)
            self._shown = 0
        say(text)


def _lines(states: Sequence[State], most: int) -> list[str]:
    """A line for each machine; where there are too many, those that are at work, and how many others there are."""
    if len(states) <= most:
        return [_line(state) for state in states]
    busy_first = sorted(states, key=lambda state: state.over)
    shown, others = busy_first[: most - 1], busy_first[most - 1 :]
    return [*map(_line, shown), f"and {counted(len(others), 'machine')} more, {_done(others)} of them done"]


def _done(states: Sequence[State]) -> int:
    return sum(state.over for state in states)


def _line(state: State) -> str:
    done = state.progress
    what = state.gave_up or (done.state if state.ended else _doing(state))
    counts = f"{counted(done.blocks, 'block'):>11}  {counted(done.trials, 'trial'):>12}"
    wrong = ((done.failed, "failed"), (done.lost, "lost"))
    told = "".join(f"  {count} {word}" for count, word in wrong if count)
    return f"{state.member.name:20.20} {counts}{told}  {what}"


def _doing(state: State) -> str:
    """What goes on at a machine whose run has not ended."""
    if state.link is None:
        return "not connected"
    return "measuring" if state.answered else "being set up"


def _write(ledger: Ledger, fleet: str, outputs: Outputs) -> None:
    from guestmark.cli.console import Console
    from guestmark.cli.session import write, writing_to_stdout
    from guestmark.fleet.order import runs_of
    from guestmark.report import fleet_report
    from guestmark.report.render import html, markdown
    from guestmark.report.render.terminal import print_page

    found = fleet_report.find(ledger, fleet, runs_of(ledger, fleet))
    page = fleet_report.page(found)
    if outputs.json is not None:
        text = json_module.dumps(fleet_report.document(found), indent=2, ensure_ascii=False, allow_nan=False)
        write((escaped_in_json(text) + "\n").encode(), outputs.json)
    if outputs.markdown is not None:
        write(markdown.render(page).encode(), outputs.markdown)
    if outputs.html is not None:
        write(html.render(page).encode(), outputs.html)
    if "-" not in (outputs.json, outputs.markdown, outputs.html):
        with writing_to_stdout():
            print_page(page, Console())
