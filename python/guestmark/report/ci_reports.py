"""Gates for machines that build: JUnit's XML, and the summary that GitHub shows on the page of a job."""

import os
from collections.abc import Sequence
from xml.etree import ElementTree

from guestmark.core.errors import GuestmarkError
from guestmark.core.units import format_count
from guestmark.ledger.model import StoredRun
from guestmark.page.text import make_inert
from guestmark.report.sections.gate_outcomes import explain_outcome
from guestmark.stats.gates import JudgedGate, Outcome

SUMMARY = "GITHUB_STEP_SUMMARY"
_MARKS = {Outcome.KEPT: "✅", Outcome.BROKEN: "❌", Outcome.UNDECIDED: "❔", Outcome.UNMEASURED: "💥"}


def make_junit(judged: Sequence[JudgedGate], run: StoredRun, *more: StoredRun) -> bytes:
    """A test suite with a case for each gate and cell, in the form that build servers read.

    A broken gate is a failure, one that was not measured an error, an undecided one is skipped.
    """
    count = {outcome: sum(one.outcome is outcome for one in judged) for outcome in Outcome}
    numbers = {
        "tests": len(judged),
        "failures": count[Outcome.BROKEN],
        "errors": count[Outcome.UNMEASURED],
        "skipped": count[Outcome.UNDECIDED],
    }
    told = {name: str(number) for name, number in numbers.items()}
    root = ElementTree.Element("testsuites", told)
    suite = ElementTree.SubElement(
        root, "testsuite", {"name": make_inert(f"guestmark {run.plan.name}"), **told}
    )
    properties = ElementTree.SubElement(suite, "properties")
    for each in (run, *more):
        ElementTree.SubElement(properties, "property", {"name": "run", "value": each.id})
    seconds = sum(trial.duration_s for each in (run, *more) for trial in each.trials) / max(len(judged), 1)
    for one in judged:
        about = {"classname": f"guestmark.{run.plan.name}", "name": f"{one.gate.text} ({one.cell})"}
        case = ElementTree.SubElement(
            suite,
            "testcase",
            {name: make_inert(text) for name, text in about.items()} | {"time": f"{seconds:.3f}"},
        )
        kind = {Outcome.BROKEN: "failure", Outcome.UNMEASURED: "error", Outcome.UNDECIDED: "skipped"}
        if one.outcome in kind:
            ElementTree.SubElement(case, kind[one.outcome], {"message": make_inert(explain_outcome(one))})
        else:
            ElementTree.SubElement(case, "system-out").text = make_inert(explain_outcome(one))
    ElementTree.indent(root)
    text: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return text + b"\n"


def make_summary(judged: Sequence[JudgedGate], *runs: StoredRun) -> str:
    """A table in Markdown."""
    lines = ["### guestmark", "", "| | gate | cell | found |", "| --- | --- | --- | --- |"]
    for one in judged:
        texts = (
            f"{_MARKS[one.outcome]} {one.outcome}",
            f"`{one.gate.text}`",
            f"`{one.cell}`",
            explain_outcome(one),
        )
        lines.append("| " + " | ".join(make_inert(text).replace("|", "\\|") for text in texts) + " |")
    return "\n".join(
        [*lines, "", *(f"Run `{run.id}`, {format_count(run.blocks, 'block')}" for run in runs), ""]
    )


def append_summary(judged: Sequence[JudgedGate], *runs: StoredRun) -> None:
    """Appends to the file that GitHub names in the environment; does nothing elsewhere. Raises `GuestmarkError`."""
    if not (path := os.environ.get(SUMMARY)):
        return
    try:
        with open(path, "a", encoding="utf-8") as stream:
            stream.write(make_summary(judged, *runs))
    except OSError as error:
        raise GuestmarkError(
            f"the step summary {path} cannot be written: {error.strerror or error}",
            hint=f"unset {SUMMARY} where there is no such file",
        ) from error
