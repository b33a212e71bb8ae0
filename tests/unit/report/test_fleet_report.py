"""The runs of a fleet, as `fleet show` has them."""

from dataclasses import replace
from pathlib import Path

from guestmark.core.model import LeftOut, RunState, TrialStatus
from guestmark.ledger import open_ledger
from guestmark.page.tables import Table
from guestmark.report import fleet_report
from guestmark.report.render import markdown
from guestmark.stats.across_runs import PastRatio
from tests.framework.runs import host_uml_tcg


def test_what_was_lost_is_made_up_for_when_a_run_is_complete() -> None:
    run = host_uml_tcg(blocks=2)
    lost = replace(run.trials[0], status=TrialStatus.LOST, reason="its worker has ended")
    for state, said in (
        (RunState.COMPLETE, "lab1: 1 trial was lost; later blocks replaced it"),
        (RunState.INTERRUPTED, "lab1: 1 trial was lost; guestmark fleet resume will replace it"),
    ):
        found = replace(run, state=state, trials=(lost, *run.trials[1:]))
        machine = fleet_report.MachineResult("lab1", "", found, {})
        assert said in markdown.render(
            fleet_report.make_page(fleet_report.FleetComparison("fleet-1", (machine,)))
        )


def test_what_is_missing_is_told_with_its_reason() -> None:
    run = host_uml_tcg(blocks=2)
    failed = replace(run.trials[0], status=TrialStatus.FAILED, reason="the guest panicked")
    left_out = (LeftOut("kvm", "no guest gets ready", "use tcg"),)
    found = fleet_report.FleetComparison(
        "fleet-1",
        tuple(
            fleet_report.MachineResult(name, "", replace(run, unusable=left_out, trials=trials), {})
            for name, trials in (("lab1", run.trials), ("lab2", (failed, *run.trials[1:])))
        ),
    )
    text = markdown.render(fleet_report.make_page(found))
    assert "lab1, lab2: kvm was left out: no guest gets ready; use tcg" in text
    assert "lab2: a trial failed: the guest panicked" in text
    assert "lab1: a trial failed" not in text


def test_each_cell_has_a_table_that_says_what_is_compared(tmp_path: Path) -> None:
    """Names of cells stand above: beside those of machines a terminal has no room for what tells cells apart."""
    runs = []
    with open_ledger(tmp_path / "ledger.sqlite") as ledger:
        for number, blocks in enumerate((8, 8, 3)):
            run = host_uml_tcg(blocks=blocks)
            plan = replace(run.plan, title="Which is fast?")
            stored = ledger.create_run(plan, {}, seed=number)
            with ledger.claim_run(stored):
                for trial in run.trials:
                    ledger.store_trial(stored, trial)
            runs.append((f"lab{number}", "alike", stored))
        page = fleet_report.make_page(fleet_report.compare_machines(ledger, "fleet-1", runs))
    tables = [node for node in page.sections[0].nodes if isinstance(node, Table)]
    assert [table.heading for table in tables] == ["", "uml against host", "tcg against host"]
    assert [row.name.parts for row in tables[2].rows] == [("lab0",), ("lab1",), ("lab2",), ("class alike",)]
    assert tables[2].columns[0].heading == "wall"
    text = markdown.render(page)
    assert text.startswith("### `Which is fast?`\n\nby machine, fleet-1\n")
    assert "inconclusive (fewer than 6 blocks)" in text
    assert "3 machines, not shown to differ" in text


def test_that_a_class_is_not_pooled_is_told_with_its_reason() -> None:
    run, ratio = host_uml_tcg(blocks=2), PastRatio("run", 0.0, 2.0, 1.9, 2.1, 10)

    def told(*cells: str, shared: bool = False) -> list[str]:
        """Remarks on a class whose machines have ratios of these cells each."""
        machines = []
        for number, names in enumerate(map(str.split, cells)):
            found = fleet_report.CellRatio(ratio, "slower", "", "w", "h")
            ratios = dict.fromkeys(names, found)
            machines.append(fleet_report.MachineResult(f"lab{number}", "r730", run, ratios, shared=shared))
        lines = markdown.render(
            fleet_report.make_page(fleet_report.FleetComparison("fleet-1", tuple(machines)))
        ).splitlines()
        return [line.removeprefix("- ") for line in lines if "Class r730" in line]

    assert told("uml tcg", "uml tcg", "uml tcg") == []
    assert told("uml", "uml") == ["Class r730 is not pooled: it has 2 of the 3 machines that pooling needs"]
    assert told("uml tcg", "uml", "uml") == [
        "Class r730 is not pooled for tcg: 1 of its 3 machines has a ratio with an interval, and pooling needs 3"
    ]
    assert told("uml", "uml", "uml", shared=True) == []
    assert told("", "", "") == []  # what is compared has no interval yet, which is said above
