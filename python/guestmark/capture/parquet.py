"""Writes connections or endpoints as Parquet.

The program's CSV goes through polars' streaming engine, so memory is bounded.
"""

from __future__ import annotations

from pathlib import Path

from guestmark.capture.binary import Selection, run_with_output
from guestmark.core.errors import GuestmarkError
from guestmark.core.own_program import install_extra
from guestmark.core.temporary import scratch_directory


def write_parquet(selection: Selection, by: str, output: Path, options: list[str]) -> int:
    """Write `output` and return the program's exit status. Raises `GuestmarkError` if it cannot be written."""
    install_extra("polars", "frames", "data frames and Parquet")
    import polars as pl

    texts = ["file", "protocol", "address", "role", "roles", "captured", "marks", "capture_point"]
    texts += ["client_address", "server_address", "confidence", "longest_wait_for"]
    with scratch_directory("capture") as folder:
        rows = folder / "rows.csv"
        with rows.open("wb") as out:
            status = run_with_output(selection, ["--format=csv", f"--by={by}", *options], out.fileno())
        if rows.stat().st_size == 0:
            raise GuestmarkError(
                "there are no connections to write", hint="--format table shows what the capture contains"
            )
        names = pl.read_csv(rows, n_rows=0).columns
        # polars would infer types from the first rows, whose columns may all be empty.
        schema: dict[str, type[pl.DataType]] = {}
        for name in names:
            if name in texts:
                schema[name] = pl.String
            elif _is_fraction(name):
                schema[name] = pl.Float64
            else:
                schema[name] = pl.Int64
        try:
            pl.scan_csv(rows, schema=schema).sink_parquet(output)
        except OSError as error:
            raise GuestmarkError(f"{output} cannot be written: {error.strerror or error}") from error
    return status


def _is_fraction(name: str) -> bool:
    return name.endswith(("_s", "share"))
