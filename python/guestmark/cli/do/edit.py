"""Changes the name, notes, labels and tags of a run."""

from __future__ import annotations

from guestmark.cli.commands.edit import Options
from guestmark.cli.outputs import build_remarks
from guestmark.core.errors import ExitStatus, UsageError
from guestmark.ledger import open_ledger
from guestmark.ledger.run_annotations import NO_ANNOTATIONS
from guestmark.page.say import say


def run(given: Options) -> int:
    """Adds what was given, then removes labels and tags."""
    remarks = build_remarks(given.name, given.note, given.label, given.tag)
    if remarks == NO_ANNOTATIONS and not given.unlabel and not given.untag:
        raise UsageError("there is nothing to change", hint="give --name, --note, --label or --tag")
    with open_ledger(given.ledger) as ledger:
        run_id = ledger.annotate_run(given.run, remarks)
        if given.unlabel or given.untag:
            ledger.remove_annotations(run_id, labels=given.unlabel or (), tags=given.untag or ())
    say(f"run {run_id} is annotated")
    return ExitStatus.ALL_MEASURED
