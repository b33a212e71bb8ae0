"""Which package the command is from that a guest runs between its start and its end."""

from collections.abc import Mapping
from typing import Any

from guestmark.workloads.exec import packages


def of_command(params: Mapping[str, Any]) -> tuple[str, ...]:
    """As of `exec`; none without a command."""
    return packages.of_command({"argv": params["command"]}) if "command" in params else ()
