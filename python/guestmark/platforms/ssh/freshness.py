"""The factors that decide how another machine is made fresh before each trial."""

from guestmark.core.factor import Factor
from guestmark.setting.base import has_control_characters


def _parse_command(text: str) -> str:
    if not text.strip():
        raise ValueError("the command is empty")
    if has_control_characters(text):
        raise ValueError(f"{text!r} contains control characters")
    return text.strip()


RESTART = Factor(
    "restart",
    "a shell command, run on this host before each trial, that resets the other machine, e.g. virsh snapshot-revert "
    r"$GUESTMARK_DEST clean --running (write a comma inside as \,)",
    _parse_command,
)
READY = Factor(
    "ready",
    "a shell command on this host that succeeds once the restarted machine is ready; it is retried every second",
    _parse_command,
)
FRESHNESS = (RESTART, READY)
