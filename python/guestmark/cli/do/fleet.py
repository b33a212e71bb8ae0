"""Runs one plan on the machines of a lab."""

from __future__ import annotations

import json
from collections.abc import Sequence

from guestmark.cli.commands.fleet import ACTIONS, OFFERED_ACTIONS, Options
from guestmark.cli.do import fleet_doctor
from guestmark.cli.fleet_progress import FleetProgress
from guestmark.cli.page_output import write_page
from guestmark.core.context import FleetOrder
from guestmark.core.errors import ExitStatus, UsageError, make_unknown_name_error
from guestmark.core.units import format_count
from guestmark.fleet import lab, order, parsl_engine, worker
from guestmark.fleet.coordinator import Fleet, run_fleet
from guestmark.fleet.lab import LabMachine
from guestmark.fleet.order import list_fleet_runs
from guestmark.ledger import open_ledger
from guestmark.ledger.postgres import find_connection_room
from guestmark.ledger.store import Ledger
from guestmark.page.say import say
from guestmark.plan import library
from guestmark.report import fleet_report


def run(given: Options) -> int:
    """Measures on all machines, shows results or examines the machines; returns the exit status."""
    arguments = _check_arguments(given)
    if given.action == "worker":
        return worker.run_worker()
    if given.action == "resume":
        return _resume_fleet(arguments[0], given)
    if given.action == "show":
        with open_ledger(given.ledger, writable=False) as ledger:
            _show_results(ledger, order.find_fleet(ledger, arguments[0]), given)
        return ExitStatus.ALL_MEASURED
    if given.machines is None:
        raise UsageError(
            f"fleet {given.action} needs the lab's machines",
            hint="add --machines lab.toml; see docs/guide/lab.md",
        )
    if given.action == "doctor":
        return fleet_doctor.examine_lab(
            given.machines, given.ledger, json_wanted=given.json is not None, quiet=given.quiet
        )
    return _run_fleet(arguments, given.machines, given)


def _check_arguments(given: Options) -> list[str]:
    """Returns the arguments of the action. Raises `UsageError` if it is unknown or does not take them."""
    action, arguments = given.action, given.arguments or []
    if action not in ACTIONS:
        raise make_unknown_name_error("action", action, OFFERED_ACTIONS)
    # A command may have any number of words.
    if action == "exec":
        if not arguments:
            raise UsageError(
                "fleet exec needs a command", hint="guestmark fleet exec --machines lab.toml -- COMMAND"
            )
    elif len(arguments) != len(ACTIONS[action].split()):
        usage = f"guestmark fleet {action} {ACTIONS[action]}".rstrip()
        raise UsageError(f"fleet {action} takes {ACTIONS[action] or 'no argument'}", hint=usage)
    return arguments


def _run_fleet(arguments: list[str], machines: str, given: Options) -> int:
    """Runs a plan, or one command, on all machines from the beginning."""
    parsl_engine.require_parsl()
    members = lab.read_lab(machines)
    if given.action == "exec":
        text, where = _render_command_plan(arguments), "fleet exec"
    else:
        text, where = library.find_plan(arguments[0])
    overrides = {
        "on": given.on,
        "settings": given.settings,
        "only": given.only,
        "blocks": given.blocks,
        "precision": given.precision,
        "time_limit_s": given.time_limit_s,
    }
    asked = {name: value for name, value in overrides.items() if value}
    scale = 1.0 if given.scale is None else given.scale
    fleet_order = order.make_order(text, where, scale, asked, members, whole=given.whole)
    url = order.find_reachable_ledger(given.ledger, members)
    with open_ledger(given.ledger) as ledger:
        return _coordinate_machines(fleet_order, members, ledger, url, given)


def _render_command_plan(command: Sequence[str]) -> str:
    """Writes the TOML of a plan that measures one command, on each machine's own system unless told otherwise."""
    # A JSON string is a TOML string, too.
    words = ", ".join(json.dumps(word) for word in command)
    return (
        'schema = "guestmark-plan/2"\nname = "exec"\ntitle = "What does the command take?"\nplatforms = ["host"]\n'
        f"[workloads.exec.params]\ncommand = [{words}]\n"
    )


def _resume_fleet(name: str, given: Options) -> int:
    """Continues an earlier fleet from where its runs end."""
    parsl_engine.require_parsl()
    with open_ledger(given.ledger) as ledger:
        fleet_order = order.load_order(ledger, order.find_fleet(ledger, name))
        members = lab.load_lab(fleet_order.lab) if given.machines is None else lab.read_lab(given.machines)
        url = order.find_reachable_ledger(given.ledger, members)
        return _coordinate_machines(fleet_order, members, ledger, url, given)


def _coordinate_machines(
    fleet_order: FleetOrder, members: Sequence[LabMachine], ledger: Ledger, url: str, given: Options
) -> int:
    name = fleet_order.fleet
    # The redrawn lines of the machines must not overwrite remarks of the ledger and the engine.
    progress = FleetProgress(quiet=given.quiet)
    ledger.patience.notice = progress.note
    room = find_connection_room(ledger, len(members))
    if room is not None and not room.is_enough:
        problem, advice = fleet_doctor.explain_missing_room(room, len(members))
        progress.note(f"{problem}\n  {advice}")
    if not given.quiet:
        say(
            f"{name}: {format_count(len(members), 'machine')}; Ctrl-C stops it, "
            f"and guestmark fleet resume {name} continues"
        )
    fleet = Fleet(fleet_order, members, ledger, url, tell=progress.note, look=progress.update)
    interrupted = run_fleet(fleet)
    if interrupted:
        say(f"stopped; guestmark fleet resume {name} continues")
    if any(state.progress.trials for state in fleet.states.values()):
        _show_results(ledger, name, given)
    return int(ExitStatus.INTERRUPTED if interrupted else fleet.status)


def _show_results(ledger: Ledger, fleet: str, given: Options) -> None:
    """Shows results by machine, and for machines of one class together."""
    comparison = fleet_report.compare_machines(ledger, fleet, list_fleet_runs(ledger, fleet))
    paths = {"json": given.json, "markdown": given.markdown, "html": given.html}
    write_page(fleet_report.make_page(comparison), lambda: fleet_report.make_document(comparison), paths)
