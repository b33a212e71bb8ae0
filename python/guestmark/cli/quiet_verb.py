"""`guestmark quiet`: the host's settings that make speed wander, set aside and put back."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from guestmark.page.say import say, tell


class Action(StrEnum):
    """What is to be done."""

    ON = "on"
    OFF = "off"
    STATUS = "status"


def command(action: Annotated[Action, typer.Argument(help="on, off or status.")]) -> None:
    """Make the host's speed steadier: governor, turbo, idle states, siblings, interrupts, KSM and others.

    `on` lasts until `off` or a restart of the host; --quiet-host of measuring commands lasts as long as their run.
    Every change is listed. A host without turbo has another speed: compare only runs with the same settings.
    """
    from guestmark.engine import quiet_host

    if action is Action.STATUS:
        _status()
        return
    outcome = quiet_host.quieten_host() if action is Action.ON else quiet_host.restore_host()
    for line in quiet_host.summarise_changes(outcome.changed):
        say(line if action is Action.ON else f"put back: {line.partition(':')[0]}")
    for line in quiet_host.summarise_changes(outcome.refused):
        say(f"refused by the host: {line}")
    if not outcome.changed:
        say("nothing had to be changed" if action is Action.ON else "nothing was changed by guestmark")


def _status() -> None:
    from guestmark.engine import quiet_host

    held = quiet_host.attest_settings()
    for name, value in held.items():
        tell(f"{name}: {value}, set by guestmark")
    open_ = list(quiet_host.find_noisy_settings())
    for line in quiet_host.summarise_changes(open_):
        why = next(knob.why for knob in quiet_host.HOST_SETTINGS if knob.name == line.partition(":")[0])
        tell(f"{line} would be quieter: {why}")
    if not held and not open_:
        tell("quiet: no setting that this host has could be quieter")
