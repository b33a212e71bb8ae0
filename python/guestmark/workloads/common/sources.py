"""Before the first trial: are the sources long enough?"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from guestmark.core.errors import UsageError
from guestmark.core.model import Cell
from guestmark.core.units import parse_size


def check_sources(cells: Iterable[Cell]) -> None:
    """Raises `UsageError` for a source file that is missing or shorter than the amount requested."""
    for cell in cells:
        source = cell.workload.params.get("source")
        if source is None or not source["content"].startswith("file:"):
            continue
        path, amount = source["content"].removeprefix("file:"), parse_size(source["size"])
        try:
            size = Path(path).stat().st_size
        except OSError as error:
            raise UsageError(f"{path}: {error.strerror}", hint="give a file that can be read") from error
        if size < amount:
            raise UsageError(
                f"{path} has {size} bytes, but the plan needs {amount}",
                hint="ask for less, or give a longer file",
            )
