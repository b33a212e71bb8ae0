"""Measure what published experiments answer in a quarter of an hour: `.venv/bin/python -m bench.quarter [NAME...]`.

Runs each as a user types it, in a ledger without earlier runs, and counts how many of its questions are answered: each
row that is compared, each group of which one is best, unless this machine has only one of the group, and whether each
published ratio is repeated. A table in Markdown has the answers, lines of the page, the wall time, where the time of
trials went, and how many blocks took the time that the blocks before them predicted, within ×1.3. Leave the machine
alone meanwhile. With `--again 10` each also runs ten times as long, and answers that changed are named. With
`--keep FOLDER` the documents stay there, and are compared with those that earlier runs left in it. The exit status is 1
if an experiment answers less than nine tenths of its questions, or if an answer changed.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
_ENOUGH = 0.9  # least share of the wanted answers that a run must give
_CLOSE = 1.3  # factor by which the time of a block may differ from its forecast
_CLEAR = 0.1  # share of the whole by which one part must be larger than another
_LATE_S = 300.0  # after its time, when a run is taken to hang
EXPERIMENTS: Mapping[str, Sequence[str]] = {
    "backends": ("run", "backends", "--on", "uml,tcg,tcg/uml,tcg/kvm"),
    "upload": ("run", "upload"),
    "sysbench": ("run", "sysbench", "--on", "host,uml,tcg"),
    "netboot": ("run", "netboot"),
    "filesystems": ("run", "filesystems"),
    "tour": ("tour",),
    "filesystems on sparc64": ("run", "filesystems", "--on", "host,tcg@sparc64"),
}

# Answers by what they are about.
_Answers = list[tuple[tuple[str, ...], Mapping[str, Any]]]


@dataclass(frozen=True, slots=True)
class Outcome:
    """One experiment: its answers and its cost; `shares` are shares of the trials' time, by what it was spent on."""

    name: str
    status: int
    seconds: float
    lines: int
    asked: int
    answered: int
    cells: int
    blocks: int
    failed: int
    shares: Mapping[str, float]
    # Blocks after the first, and how many of them took the time that earlier blocks predicted.
    later: int
    foretold: int

    @property
    def row(self) -> str:
        shares = " / ".join(f"{self.shares.get(name, 0.0):.0%}" for name in ("starting", "measuring"))
        failed = f", {self.failed} failed" if self.failed else ""
        answered = f"{self.answered} of {self.asked}" if self.asked else "–"
        return (
            f"| `{self.name}` | {answered} | {self.seconds:.0f} s | {self.lines} | "
            f"{self.cells} | {self.blocks}{failed} | {shares} | {self.foretold} of {self.later} |"
        )


def run(name: str, budget_s: float, folder: Path) -> tuple[Outcome, Mapping[str, Any]]:
    """Run one experiment; return what it took and its document."""
    document = folder / f"{_name_documents(name)}{budget_s:.0f}-{time.time():.0f}.json"
    words = list(EXPERIMENTS[name])
    if words[0] == "run":
        words += ["--published", "--for", f"{budget_s:.0f}s"]
    words += ["--ledger", str(document.with_suffix(".sqlite")), "--json", str(document)]
    begun = time.monotonic()
    done = subprocess.run(
        [str(ROOT / "guestmark"), *words],
        env={**os.environ, "COLUMNS": "80"},
        stdout=subprocess.PIPE,
        text=True,
        timeout=budget_s + _LATE_S,
        check=False,
    )
    seconds = time.monotonic() - begun
    print(done.stdout, file=sys.stderr)
    found = json.loads(document.read_text()) if document.exists() else {}
    answers = []
    # A tour gives magnitudes, which are no verdicts.
    if words[0] == "run":
        answers += [each for question in found.get("questions", ()) for each in question["answers"]]
        answers += [answer for _, answer in _list_published(found)]
    trials = _read_trials(found)
    outcome = Outcome(
        name,
        done.returncode,
        seconds,
        len(done.stdout.splitlines()),
        sum(_can_be_answered(each) for each in answers),
        sum(_can_be_answered(each) and _is_answered(each) for each in answers),
        len([cell for cell in found.get("cells", ()) if cell["trials"]]),
        len({trial["block"] for trial in trials}),
        sum(trial["status"] != "ok" for trial in trials),
        _shares(trials),
        *_score_forecasts(trials),
    )
    return outcome, found


def _name_documents(name: str) -> str:
    """Return what the names of an experiment's documents begin with, and no other's."""
    return f"{name.replace(' ', '_')}-"


def _read_documents(name: str, folder: Path) -> list[Mapping[str, Any]]:
    """Return the documents of this experiment's earlier runs in the folder."""
    return [json.loads(path.read_text()) for path in sorted(folder.glob(f"{_name_documents(name)}*.json"))]


def find_contradictions(short: Mapping[str, Any], long: Mapping[str, Any]) -> tuple[int, list[str]]:
    """Return how many answers both documents give, and the ones of the short run that the long one contradicts.

    A group's answers contradict each other if no cell may be the best by both, or if the intervals between the two that
    lead are disjoint; those of a pair if their verdicts differ and their intervals are disjoint, as a long run finds
    differences within the bounds of a short one; those of parts if another is clearly the largest.
    """
    known = {key: answer for key, answer in _list_answers(long) if _is_answered(answer)}
    both = 0
    wrong = []
    for key, answer in _list_answers(short):
        other = known.get(key)
        if other is None or not _is_answered(answer):
            continue
        both += 1
        if "best" in answer:
            first, then, differ = answer["best"], other["best"], _have_different_best(answer, other)
        elif "parts" in answer:
            first, then = (max(each["parts"], key=each["parts"].get) for each in (answer, other))
            sizes = other["parts"]
            differ = sizes[then] - sizes.get(first, 0.0) > _CLEAR * sum(sizes.values())
        else:
            first, then = answer["verdict"], other["verdict"]
            differ = first != then and _are_disjoint(answer["ci"], other["ci"])
        if differ:
            wrong.append(f"{' '.join(key)}: {first}, then {then}")
    return both, wrong


def _have_different_best(short: Mapping[str, Any], long: Mapping[str, Any]) -> bool:
    """Return whether two rankings exclude each other's best cell, by their sets or by the ratio between the two."""
    first, then = short["best"], long["best"]
    if not {first, *short["not_worse"]} & {then, *long["not_worse"]}:
        return True
    ours = short.get("against_best", {}).get(then, {}).get("ci")
    theirs = long.get("against_best", {}).get(first, {}).get("ci")
    if ours is None or theirs is None:
        return False
    # They divide the pair the other way round.
    return _are_disjoint(ours, [1 / end if end else None for end in reversed(theirs)])


def _are_disjoint(one: Sequence[float | None] | None, other: Sequence[float | None] | None) -> bool:
    from guestmark.stats.cell_answers import are_disjoint

    return are_disjoint(_read_interval(one), _read_interval(other))


def _read_interval(ends: Sequence[float | None] | None) -> tuple[float, float] | None:
    """Return an interval from JSON, where open ends are null."""
    if ends is None:
        return None
    low, high = ends
    return (-math.inf if low is None else low, math.inf if high is None else high)


def _list_answers(document: Mapping[str, Any]) -> _Answers:
    """Return each answer by what it is about: which cell is best, how two compare, parts, published ratios."""
    found = _list_published(document)
    for question in document.get("questions", ()):
        for answer in question["answers"]:
            about = answer.get("of") or [answer[name] for name in ("cell", "against") if name in answer]
            if answer.keys() & {"best", "verdict", "parts"}:
                found.append(((question["ask"], *map(str, about), answer.get("metric", "")), answer))
    return found


def _list_published(document: Mapping[str, Any]) -> _Answers:
    """Return what became of each published ratio, in the form of an answer."""
    cells = {cell["id"]: cell for cell in document.get("cells", ())}
    found: _Answers = []
    for each in document.get("published", ()):
        now = cells[each["cell"]]["vs_baseline"].get(each["metric"], {"ci": None})
        answer = {"verdict": each["verdict"], "answered": each["verdict"] != "open", "ci": now["ci"]}
        found.append((("then and now", each["name"], each["cell"], each["metric"]), answer))
    return found


def _is_answered(answer: Mapping[str, Any]) -> bool:
    return bool(answer.get("answered", True))


def _can_be_answered(answer: Mapping[str, Any]) -> bool:
    """Return whether this machine has what the answer needs: more than one of the cells that are compared."""
    return "best" not in answer or len(answer["order"]) + len(answer["left_out"]) > 1 or not answer["missing"]


def _score_forecasts(trials: Sequence[Mapping[str, Any]]) -> tuple[int, int]:
    """Return how many blocks followed the first, and how many took what `engine.budget` expected, within _CLOSE."""
    from guestmark.engine.budget import estimate_next_trial_s

    durations: dict[str, list[float]] = {}
    later = foretold = 0
    for block in sorted({trial["block"] for trial in trials}):
        known = [trial for trial in trials if trial["block"] == block and trial["cell"] in durations]
        took = sum(trial["duration_s"] for trial in known)
        if took:
            expected = sum(estimate_next_trial_s(durations[trial["cell"]]) for trial in known)
            later += 1
            foretold += 1 / _CLOSE <= expected / took <= _CLOSE
        for trial in trials:
            if trial["block"] == block:
                durations.setdefault(trial["cell"], []).append(trial["duration_s"])
    return later, foretold


def _read_trials(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return all trials with their cell and what they have in common with others of it."""
    cells = (*document.get("cells", ()), *document.get("null_cells", ()))
    return [
        _merge(cell["shared"], {**trial, "cell": cell["id"]}) for cell in cells for trial in cell["trials"]
    ]


def _merge(common: Any, own: Any) -> Any:
    if isinstance(common, Mapping) and isinstance(own, Mapping):
        return {key: _merge(common.get(key), own.get(key)) for key in {**common, **own}}
    return common if own is None else own


def _shares(trials: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    whole = sum(trial["duration_s"] for trial in trials)
    if not whole:
        return {}
    starting = sum(_starting_s(trial) for trial in trials)
    measuring = sum(sum(trial["run_s"]) for trial in trials)
    return {"starting": starting / whole, "measuring": measuring / whole}


def _starting_s(trial: Mapping[str, Any]) -> float:
    """Return the seconds of the trial's own start, or of its part of one that others share."""
    shared = (trial.get("attestation") or {}).get("shared_start_s")
    return float((trial.get("phases") or {}).get("ready", 0.0) if shared is None else shared)


def main() -> int:
    """Print the table, a row as soon as its experiment has ended."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "names",
        nargs="*",
        choices=[[], *EXPERIMENTS],
        metavar="NAME",
        help=f"which of {', '.join(EXPERIMENTS)}; all but sparc64",
    )
    parser.add_argument("--for", dest="budget", default="15m", help="wall time of each (default: 15m)")
    parser.add_argument(
        "--again", type=float, metavar="N", help="also run each N times as long, and name answers that change"
    )
    parser.add_argument(
        "--keep",
        type=Path,
        metavar="FOLDER",
        help="keep documents here, and name answers that those here contradict",
    )
    given = parser.parse_args()
    names = given.names or [name for name in EXPERIMENTS if "sparc64" not in name]
    sys.path.insert(0, str(ROOT / "python"))
    print("| experiment | answered | wall time | lines | rows | blocks | starting / measuring | foretold |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    from guestmark.core.units import parse_duration

    budget_s = parse_duration(given.budget)
    outcomes = []
    wrong: list[str] = []
    if given.keep is not None:
        given.keep.mkdir(parents=True, exist_ok=True)
    opened = (
        nullcontext(given.keep) if given.keep else tempfile.TemporaryDirectory(prefix="guestmark-quarter-")
    )
    with opened as path:
        folder = Path(path)
        for name in names:
            earlier = _read_documents(name, folder)
            outcome, found = run(name, budget_s, folder)
            outcomes.append(outcome)
            print(outcome.row, flush=True)
            if given.again and name != "tour":
                _, longer = run(name, given.again * budget_s, folder)
                earlier.append(longer)
            for other in earlier:
                both, changed = find_contradictions(found, other)
                wrong += changed
                print(f"{name}: {len(changed)} of {both} answers changed", file=sys.stderr)
    print(*wrong, sep="\n", file=sys.stderr)
    return int(bool(wrong)) or int(any(each.answered < _ENOUGH * each.asked for each in outcomes))


if __name__ == "__main__":
    sys.exit(main())
