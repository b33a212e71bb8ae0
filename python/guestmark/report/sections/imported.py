"""Where a run comes from that was not made here, and what it really runs: labels are words of whoever made it."""

from guestmark.core.actions import actions
from guestmark.ledger.model import Origin, StoredRun
from guestmark.page.nodes import Definitions, Node, Note, NoteKind, Part, Section
from guestmark.page.text import line


def imported(run: StoredRun, origin: Origin, *, whole: bool) -> Section:
    """Its source and its commands; with `whole` also as whom, where, and with which variables they run."""
    nodes: list[Node] = [
        Note(
            line(
                f"Imported from {origin.source}: figures and names are as they were there, and not verified"
            ),
            NoteKind.WARNING,
        )
    ]
    if rows := actions(run.plan, context=whole):
        nodes.append(Definitions("What it runs", tuple(rows)))
    if whole and origin.sha256:
        nodes.append(Definitions("The bundle", (("SHA-256", origin.sha256),)))
    return Section(Part.WORKLOAD, "Imported", tuple(nodes), titled=False)
