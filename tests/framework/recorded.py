"""Records of earlier versions: their ledgers, and for 0.1 the keys of attestations in its result documents.

`tests/ledger_0_1/README.md` says how they were made.
"""

import json
import lzma
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1] / "ledger_0_1"
VERSIONS = tuple(sorted(folder.name.removeprefix("ledger_") for folder in FOLDER.parent.glob("ledger_*")))
KEYS: Mapping[str, Mapping[str, list[str]]] = json.loads(
    (FOLDER / "keys.json").read_text()
)  # by run and cell


def ledger(folder: Path, version: str = "0_1") -> Path:
    """Copy the ledger of one of `VERSIONS` into the folder, and return its path."""
    file = folder / "ledger.sqlite"
    kept = FOLDER.parent / f"ledger_{version}" / "ledger.sqlite.xz"
    file.write_bytes(lzma.decompress(kept.read_bytes()))
    return file


def keys(value: Any, above: str = "") -> Iterator[str]:
    """Yield the keys of a JSON value at every depth, joined by dots; those of a list are the keys of its elements."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield f"{above}{name}"
            yield from keys(inner, f"{above}{name}.")
    elif isinstance(value, list):
        for element in value:
            yield from keys(element, f"{above}[].")
