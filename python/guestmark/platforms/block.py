"""What QEMU says about the drives it was given."""

from collections.abc import Mapping
from typing import Any

from guestmark.setting.disk import Role


def facts_of_drives(query: Any) -> Mapping[str, Mapping[str, Any]]:
    """What QEMU says about each of our drives: format, cache switches, cluster size, node."""
    return {
        entry["device"]: entry["inserted"]
        for entry in query("query-block")
        if entry.get("device") in {str(role) for role in Role} and "inserted" in entry
    }
