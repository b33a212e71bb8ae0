"""Makes the table of docs/results/programs.md from documents of `guestmark run programs --for 15m --json FILE`.

Of several documents, the one that has judged the most crash states of a program on a filesystem counts.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from guestmark.core.findings import Explanation, Untorn
from guestmark.report import shared_facts
from guestmark.workloads.powercut import sections

_FILESYSTEMS = ("ext4", "xfs", "btrfs")
_CURED = "With a sync"


def table_rows(
    document: Mapping[str, Any],
) -> Iterator[tuple[str, Mapping[str, Any], Mapping[str, JudgedProof], str]]:
    """Yield for each workload its label and parameters, a word for each filesystem, and why something is lost."""
    cells = shared_facts.restore_shared(dict(document))["cells"]
    plan = {cell["id"]: cell for cell in document["plan"]["cells"]}
    found: dict[str, list[tuple[str, Any]]] = {}
    for cell in cells:
        found.setdefault(plan[cell["id"]]["workload"]["label"], []).append((cell["id"], cell))
    for label, of_label in found.items():
        words: dict[str, JudgedProof] = {}
        why = ""
        for name, cell in of_label:
            if not cell["trials"]:  # there was no time for it
                continue
            filesystem = next((kind for kind in _FILESYSTEMS if kind in name), "ext4")
            (trial,) = cell["trials"]
            proof = trial["attestation"].get("proof")
            words[filesystem] = _judged_states(proof) if proof else JudgedProof(-1, "failed")
            why = why or (_reason_for_loss(proof) if proof else "")
        yield label, plan[of_label[0][0]]["workload"]["params"], words, why


@dataclass(frozen=True, slots=True)
class JudgedProof:
    """The number of judged crash states, and the verdict as the table has it."""

    states: int
    said: str


def _judged_states(proof: Mapping[str, Any]) -> JudgedProof:
    counted = f"{proof['losing']} of {proof['states']}"
    word = f"**{proof['word']}**" if proof["losing"] else proof["word"]
    said = f"{word}, {counted}" if proof["states"] else word
    return JudgedProof(-1 if proof["word"] == "unknown" else proof["states"], said)


def _reason_for_loss(proof: Mapping[str, Any]) -> str:
    if "explanation" not in proof:
        return "; ".join(reason["said"] for reason in proof.get("reasons", [])[:2])
    explanation = msgspec.convert(proof["explanation"], Explanation)
    if settings := explanation.without:
        counted = f"{explanation.losing or 'none'} of {explanation.states} lost"
        return f"a commit does not wait for its sync. Without {', '.join(settings)}: {counted}"
    causes = [explanation.calls or explanation.files]
    causes += [cause.calls or cause.files for cause in sections.list_further_causes(explanation)]
    said = ". Then ".join("; ".join(words[:2]) for words in causes[:3])
    if explanation.states:
        return f"{said}. {sections.describe_cure(explanation)}"
    untorn = msgspec.convert(proof.get("untorn"), Untorn | None)
    if untorn is not None and not untorn.losing:
        return f"{said}. {sections.describe_torn(untorn)}"
    return said


def main() -> None:
    """Print the table."""
    merged: dict[str, tuple[Mapping[str, Any], dict[str, JudgedProof], str]] = {}
    for name in sys.argv[1:]:
        for label, params, words, why in table_rows(json.loads(Path(name).read_text())):
            _, known, earlier = merged.get(label, (params, {}, ""))
            for kind, judged in words.items():
                known[kind] = max(known.get(kind, judged), judged, key=lambda each: each.states)
            told = bool(why) and (_CURED in why or _CURED not in earlier)
            merged[label] = (params, known, why if told else earlier)
    print("| program | its documentation | faults in 2014 | ext4 | xfs | btrfs | why |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for label, (params, words, why) in merged.items():
        kinds = " | ".join(words[kind].said if kind in words else "" for kind in _FILESYSTEMS)
        published = params.get("published")
        print(
            f"| {label} | {params['promise']} | {'' if published is None else published} | {kinds} | {why} |"
        )


if __name__ == "__main__":
    main()
