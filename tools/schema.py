"""Makes docs/reference/*.schema.json from the types of guestmark's documents; `--check` only compares."""

from __future__ import annotations

import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "reference"


def render_schemas() -> dict[Path, str]:
    """Render the content of each file."""
    sys.path.insert(0, str(ROOT / "python"))
    from guestmark.report import schema

    kinds = {"result": schema.ResultDocument, "bundle": schema.Bundle, "packed-run": schema.PackedRun}
    return {
        FOLDER / f"{name}.schema.json": json.dumps(
            schema.make_json_schema(kind, f"{name}.schema.json"), indent=1
        )
        + "\n"
        for name, kind in kinds.items()
    }


def main(words: list[str]) -> int:
    """Write the files, or with `--check` name those that are stale; returns the exit status."""
    stale = [file for file, text in render_schemas().items() if not file.exists() or file.read_text() != text]
    if words == ["--check"]:
        for file in stale:
            print(f"{file.relative_to(ROOT)} is not made from the types: python -m tools.schema makes it")
        return int(bool(stale))
    for file, text in render_schemas().items():
        file.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
