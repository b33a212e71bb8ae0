"""Prints one version's part of CHANGELOG.md, for the notes of its release.

usage: python -m tools.release_notes VERSION
"""

import re
import sys
from pathlib import Path

CHANGELOG = Path(__file__).resolve().parents[1] / "CHANGELOG.md"


def notes_of_version(text: str, version: str) -> str:
    """Return the part under `## [VERSION]` without its heading. Raises `SystemExit` when it is missing or empty."""
    parts = re.split(r"^## \[([^\]]+)\].*\n", text, flags=re.M)
    found = dict(zip(parts[1::2], parts[2::2], strict=True)).get(version, "").strip()
    if not found:
        raise SystemExit(f"release_notes: {CHANGELOG.name} has nothing about {version}")
    return found


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    print(notes_of_version(CHANGELOG.read_text(), sys.argv[1]))
