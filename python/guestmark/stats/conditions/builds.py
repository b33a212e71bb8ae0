"""Whether cells that are compared ran the same binaries."""

from collections.abc import Iterator

from guestmark.core.findings import Build
from guestmark.core.model import Cell
from guestmark.stats.conditions.evidence import Compared, named
from guestmark.stats.validity import Finding, Severity


def builds(compared: Compared) -> Iterator[Finding]:
    """A program of another architecture is another binary: a ratio to it holds compilers and versions, too.

    Who names an architecture asks for that, so it is a warning; another version of the program is severe.
    """
    by_words: dict[tuple[str, bool], list[Cell]] = {}
    for cell in compared.cells:
        for build in {_words(found) for trial in compared.good(cell) if (found := trial.facts.of(Build))}:
            by_words.setdefault(build, []).append(cell)
    for (said, same), cells in sorted(by_words.items()):
        ids = [cell.id for cell in cells if cell.null_of is None]
        if len(cells) == len(compared.cells) and len(by_words) == 1:
            continue  # all ran the same one
        yield Finding(
            "other binaries",
            Severity.WARNING if same else Severity.SEVERE,
            f"{named(ids)} ran {said}: a ratio to it is one of compilers and code, too",
            cells=() if same else compared.spoilt_by(cell.id for cell in cells),
            advice="compare cells of one architecture where the machine alone is meant"
            if same
            else "install the same version on this host, or measure another program",
        )


def _words(build: Build) -> tuple[str, bool]:
    return build.said, build.same_source is not False
