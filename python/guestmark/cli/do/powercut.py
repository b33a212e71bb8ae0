"""Cuts the power during a guest's writes, and examines what is left."""

from __future__ import annotations

from pathlib import Path

from guestmark.cli.commands.powercut import Options
from guestmark.cli.measure import measure_plan
from guestmark.cli.outputs import collect_outputs
from guestmark.core.context import Caller
from guestmark.core.errors import ExitStatus, UsageError
from guestmark.page.say import tell
from guestmark.plan.outline import Overrides
from guestmark.powercut import evidence, rerun
from guestmark.workloads.powercut.plan import build_plan

_REPLAY = "replay"


def run(given: Options) -> int:
    """Measures what survives, or replays a log that was kept; returns the exit status."""
    # With --check a program called `replay` may be meant.
    if given.what and given.what[0] == _REPLAY and given.check is None:
        return _replay_log(given)
    if given.after is not None or given.survival is not None or _list_state_options(given):
        raise UsageError(
            "--after, --survival, --image, --shell and --rerun apply to a log that was kept",
            hint="guestmark powercut replay LOG",
        )
    budget_s = given.choose_budget(given.budget_s)
    overrides = Overrides(on=given.on or ("tcg", "uml"), **given.collect_overrides())
    plan = build_plan(overrides, _build_parameters(given), Caller.current())
    return measure_plan(plan, given.ledger, collect_outputs(given, budget_s=budget_s))


def _build_parameters(given: Options) -> dict[str, object]:
    """Builds the parameters of the workload, as a plan would have them."""
    parameters: dict[str, object] = {
        "method": given.method,
        "records": given.records,
        "states": given.states,
    }
    if given.check is not None:
        return {
            **parameters,
            "method": "command",
            "command": given.what or [],
            "check": given.check,
            "check_limit": given.check_limit or "",
            "acknowledge": given.acknowledge or "",
        }
    if given.check_limit is not None or given.acknowledge is not None:
        raise UsageError(
            "--check-limit and --acknowledge require --check", hint="guestmark powercut --check COMMAND"
        )
    if given.what:
        return {**parameters, "method": "syncs", "command": given.what}
    return parameters


def _list_state_options(given: Options) -> list[str]:
    """Lists the given options that apply to one crash state."""
    actions = {"--image": given.image is not None, "--shell": given.shell, "--rerun": given.rerun}
    return [option for option, is_given in actions.items() if is_given]


def _replay_log(given: Options) -> int:
    what = given.what or []
    if len(what) != 2:
        raise UsageError("powercut replay takes one log", hint="guestmark powercut replay LOG")
    log = what[1]
    # Logs are kept beside a ledger that is a file.
    ledger = Path(given.ledger) if given.ledger and "://" not in given.ledger else None
    actions = _list_state_options(given)
    if len(actions) > 1:
        raise UsageError(f"{' and '.join(actions)} cannot be combined", hint="give one of them at a time")
    if not actions:
        for line in evidence.describe_log(log, given.after, ledger):
            tell(line)
        return ExitStatus.ALL_MEASURED
    if given.after is None:
        raise UsageError(
            f"{actions[0]} needs --after, which says where the power is cut", hint="e.g. --after 212"
        )
    if given.image is not None:
        tell(evidence.write_cut_image(log, given.after, given.survival, given.image, ledger))
    elif given.shell:
        return rerun.open_shell(log, given.after, given.survival, ledger)
    else:
        for line in rerun.check_again(log, given.after, given.survival, ledger):
            tell(line)
    return ExitStatus.ALL_MEASURED
