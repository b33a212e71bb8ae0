"""Makes the tables of docs/results/programs.md from a run: guestmark run programs --for 25m --json run.json."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from guestmark.report import shared

_FILESYSTEMS = ("ext4", "xfs", "btrfs")


def rows(document: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any], Mapping[str, str], str]]:
    """Of each workload: its label and parameters, a word for each filesystem, and why something is lost."""
    cells = shared.whole(document)["cells"]
    plan = {cell["id"]: cell for cell in document["plan"]["cells"]}
    found: dict[str, list[tuple[str, Any]]] = {}
    for cell in cells:
        found.setdefault(plan[cell["id"]]["workload"]["label"], []).append((cell["id"], cell))
    for label, of_label in found.items():
        words, why = {}, ""
        for name, cell in of_label:
            filesystem = next((kind for kind in _FILESYSTEMS if kind in name), "ext4")
            (trial,) = cell["trials"]
            proof = trial["attestation"].get("proof")
            words[filesystem] = _word(proof) if proof else f"failed: {trial['reason']}"
            why = why or (_why(proof) if proof else "")
        yield label, plan[of_label[0][0]]["workload"]["params"], words, why


def _word(proof: Mapping[str, Any]) -> str:
    counted = f"{proof['losing']} of {proof['states']}"
    word = f"**{proof['word']}**" if proof["losing"] else proof["word"]
    return f"{word}, {counted}" if proof["states"] else word


def _why(proof: Mapping[str, Any]) -> str:
    explanation = proof.get("explanation")
    if not explanation:
        return "; ".join(reason["said"] for reason in proof.get("reasons", [])[:2])
    said = "; ".join((explanation.get("calls") or explanation["files"])[:2])
    if explanation.get("states"):
        left = explanation.get("losing", 0)
        cured = "none" if not left else f"{left}"
        said += f". With a sync there: {cured} of {explanation['states']} lost"
    return said


def main() -> None:
    """Prints the table."""
    document = json.loads(Path(sys.argv[1]).read_text())
    print("| program | its documentation | faults in 2014 | ext4 | xfs | btrfs | why |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for label, params, words, why in rows(document):
        kinds = " | ".join(words.get(kind, "") for kind in _FILESYSTEMS)
        published = params.get("published")
        print(
            f"| {label} | {params['promise']} | {'' if published is None else published} | {kinds} | {why} |"
        )


if __name__ == "__main__":
    main()
