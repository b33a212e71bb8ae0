"""Declares `guestmark quiet`."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from guestmark.core.option import Argument


class Action(StrEnum):
    """What to do with the host's settings."""

    ON = "on"
    OFF = "off"
    STATUS = "status"


@dataclass(frozen=True, kw_only=True)
class Options:
    """Make the host's speed steadier: governor, turbo, idle states, siblings, interrupts, KSM and others.

    `on` lasts until `off` or a restart of the host; --quiet-host of a measuring command lasts as long as its run.
    Every change is listed. A host without turbo runs at another speed: compare only runs with the same settings.
    """

    action: Annotated[Action, Argument("ACTION", "on, off or status.")]
