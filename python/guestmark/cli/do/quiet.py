"""Changes the host settings that make its speed vary, and restores them."""

from __future__ import annotations

from guestmark.cli.commands.quiet import Action, Options
from guestmark.core.errors import ExitStatus
from guestmark.engine import quiet_host
from guestmark.page.say import say, tell


def run(given: Options) -> int:
    """Changes the settings or shows them; every change is listed."""
    if given.action is Action.STATUS:
        _show_status()
    elif given.action is Action.ON:
        outcome = quiet_host.quieten_host()
        _report_outcome(quiet_host.summarize_changes(outcome.changed), outcome, "nothing had to be changed")
    else:
        outcome = quiet_host.restore_host()
        restored = []
        for line in quiet_host.summarize_changes(outcome.changed):
            restored.append(f"restored: {line.partition(':')[0]}")
        _report_outcome(restored, outcome, "guestmark has changed nothing")
    return ExitStatus.ALL_MEASURED


def _report_outcome(changes: list[str], outcome: quiet_host.QuietOutcome, unchanged: str) -> None:
    for line in changes:
        say(line)
    for line in quiet_host.summarize_changes(outcome.refused):
        say(f"refused by the host: {line}")
    if not outcome.changed:
        say(unchanged)


def _show_status() -> None:
    set_by_us = quiet_host.attest_settings()
    for name, value in set_by_us.items():
        tell(f"{name}: {value}, set by guestmark")
    noisy = list(quiet_host.find_noisy_settings())
    for line in quiet_host.summarize_changes(noisy):
        reason = next(knob.why for knob in quiet_host.HOST_SETTINGS if knob.name == line.partition(":")[0])
        tell(f"{line} would be quieter: {reason}")
    if not set_by_us and not noisy:
        tell("no setting of this host could be quieter")
