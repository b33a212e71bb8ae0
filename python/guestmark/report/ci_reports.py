"""Outcomes of gates for build servers: JUnit XML, and the summary that GitHub shows on the page of a job."""

import os
from collections import Counter
from collections.abc import Sequence
from itertools import chain
from xml.etree import ElementTree

from guestmark.core.errors import GuestmarkError
from guestmark.core.units import format_count
from guestmark.ledger.model import StoredRun
from guestmark.page.text import make_inert
from guestmark.report.sections.gate_outcomes import explain_outcome
from guestmark.stats.gates import JudgedGate, Outcome

SUMMARY = "GITHUB_STEP_SUMMARY"
_MARKS = {Outcome.KEPT: "✅", Outcome.BROKEN: "❌", Outcome.UNDECIDED: "❔", Outcome.UNMEASURED: "💥"}
# A broken gate counts as a failure, an unmeasured one as an error, and an undecided one as skipped.
_JUNIT_KINDS = {Outcome.BROKEN: "failure", Outcome.UNMEASURED: "error", Outcome.UNDECIDED: "skipped"}


def make_junit(gates: Sequence[JudgedGate], run: StoredRun, *more: StoredRun) -> bytes:
    """Return a JUnit test suite with a case for each gate and cell."""
    runs = (run, *more)
    name = f"guestmark {run.plan.name}"
    outcomes = Counter(gate.outcome for gate in gates)
    counts = {
        "tests": str(len(gates)),
        "failures": str(outcomes[Outcome.BROKEN]),
        "errors": str(outcomes[Outcome.UNMEASURED]),
        "skipped": str(outcomes[Outcome.UNDECIDED]),
    }
    root = ElementTree.Element("testsuites", counts)
    suite = ElementTree.SubElement(root, "testsuite", {"name": make_inert(name), **counts})
    properties = ElementTree.SubElement(suite, "properties")
    for each in runs:
        ElementTree.SubElement(properties, "property", {"name": "run", "value": each.id})
    # All gates use the same trials, so each is charged an equal part of their time.
    trials = chain.from_iterable(each.trials for each in runs)
    seconds = sum(trial.duration_s for trial in trials) / max(len(gates), 1)
    for gate in gates:
        attributes = {
            "classname": make_inert(f"guestmark.{run.plan.name}"),
            "name": make_inert(f"{gate.gate.text} ({gate.cell})"),
            "time": f"{seconds:.3f}",
        }
        case = ElementTree.SubElement(suite, "testcase", attributes)
        explanation = make_inert(explain_outcome(gate))
        if gate.outcome in _JUNIT_KINDS:
            ElementTree.SubElement(case, _JUNIT_KINDS[gate.outcome], {"message": explanation})
        else:
            ElementTree.SubElement(case, "system-out").text = explanation
    ElementTree.indent(root)
    text: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return text + b"\n"


def make_summary(gates: Sequence[JudgedGate], *runs: StoredRun) -> str:
    """Return a table of the gates in Markdown."""
    lines = ["### guestmark", "", "| | gate | cell | found |", "| --- | --- | --- | --- |"]
    for gate in gates:
        mark = f"{_MARKS[gate.outcome]} {gate.outcome}"
        texts = (mark, f"`{gate.gate.text}`", f"`{gate.cell}`", explain_outcome(gate))
        escaped = (make_inert(text).replace("|", "\\|") for text in texts)
        lines.append(f"| {' | '.join(escaped)} |")
    lines.append("")
    lines += [f"Run `{run.id}`, {format_count(run.blocks, 'block')}" for run in runs]
    return "\n".join([*lines, ""])


def append_summary(gates: Sequence[JudgedGate], *runs: StoredRun) -> None:
    """Append the summary to the file that GitHub names in the environment, if any. Raises `GuestmarkError`."""
    path = os.environ.get(SUMMARY)
    if not path:
        return
    try:
        with open(path, "a", encoding="utf-8") as stream:
            stream.write(make_summary(gates, *runs))
    except OSError as error:
        raise GuestmarkError(
            f"cannot write the step summary {path}: {error.strerror or error}",
            hint=f"make the file writable, or unset {SUMMARY}",
        ) from error
