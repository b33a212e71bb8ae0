"""`guestmark doctor --arch`: the architectures that guests can have here, and what is missing for the others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from guestmark.foreign.survey import State


def examine() -> list[dict[str, Any]]:
    """The document of `doctor --arch --json`; nothing is booted."""
    from guestmark.foreign.survey import survey

    return [_document(state) for state in survey()]


def _document(state: State) -> dict[str, Any]:
    row = state.architecture
    return {
        "architecture": row.name,
        "machine_name": row.machine_name,
        "platform": state.platform,
        "big_endian": row.big_endian,
        "page_size": row.page_size,
        "kernel": row.kernel.value,
        "programs": row.root,
        "made": state.made,
        "first_use_s": state.first_use_s,
        "missing": [{"program": each.name, "package": each.package} for each in state.missing],
        "fault": state.fault,
    }


def show(document: list[dict[str, Any]]) -> None:
    """Prints a row for each architecture."""
    from rich.table import Table

    from guestmark.cli.console import Console, shown

    table = Table(box=None, pad_edge=False)
    for heading in ("platform", "uname -m", "bytes", "pages", "state"):
        table.add_column(heading)
    for row in document:
        table.add_row(
            shown(row["platform"], "bold"),
            shown(row["machine_name"]),
            shown("big-endian" if row["big_endian"] else "little-endian"),
            shown(f"{row['page_size'] >> 10} KiB"),
            shown(said(row)),
        )
    Console().print(table)


def said(row: dict[str, Any]) -> str:
    """What the row's last column says."""
    if row["fault"]:
        return str(row["fault"])
    if row["missing"]:
        packages = " ".join(dict.fromkeys(each["package"] for each in row["missing"]))
        return f"needs packages: apt-get install {packages}"
    programs = (
        "" if row["programs"] else "; no programs, as Debian has no packages: its agent's own workloads"
    )
    if not row["made"]:
        return "this host's own"
    if row["first_use_s"]:
        absent = ", ".join(name for name, there in row["made"].items() if not there)
        minutes = -(-row["first_use_s"] // 30) / 2
        return f"made on first use: {absent} (about {minutes:g} min){programs}"
    return f"ready{programs}"
