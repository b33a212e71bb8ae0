"""Makes the table of docs/results/programs.md from result documents of `guestmark run programs --for 25m --json FILE`.

Of several documents, each further one replaces what the ones before have said of a program on a filesystem.
"""

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
    merged: dict[str, tuple[Mapping[str, Any], dict[str, str], str]] = {}
    for name in sys.argv[1:]:
        for label, params, words, why in rows(json.loads(Path(name).read_text())):
            _, earlier, known = merged.get(label, (params, {}, ""))
            merged[label] = (params, {**earlier, **words}, why or known)
    print("| program | its documentation | faults in 2014 | ext4 | xfs | btrfs | why |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for label, (params, words, why) in merged.items():
        kinds = " | ".join(words.get(kind, "") for kind in _FILESYSTEMS)
        published = params.get("published")
        print(
            f"| {label} | {params['promise']} | {'' if published is None else published} | {kinds} | {why} |"
        )


if __name__ == "__main__":
    main()
