"""A run beside earlier runs of the same host, through real ledgers."""

import json
import math
import sqlite3
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from guestmark.core.model import Cell, RunState
from guestmark.core.platform_spec import HOST, PlatformSpec
from guestmark.ledger import open_ledger, signatures
from guestmark.ledger.run_history import analyse_with_history, read_history, store_ratios
from guestmark.ledger.store import Ledger
from guestmark.report.document import make_result_document
from guestmark.report.sections.conclusion import make_conclusion
from guestmark.stats.across_runs import (
    FEWEST_NULLS,
    ChangeVerdict,
    History,
    PastNull,
    PastRatio,
    compare_with_earlier,
)
from guestmark.stats.analysis import Analysis
from guestmark.stats.compare import WIDENED_REASON
from tests.framework.preloaded import call as guestmark
from tests.framework.runs import EXEC, MEMORY, constructed

ENVIRONMENT: Mapping[str, Any] = {
    "machine": "0123456789abcdef",
    "processor": {"model": "AMD EPYC", "count": 2, "architecture": "x86_64"},
    "kernel": {"release": "6.1.0-41-amd64"},
    "programs": {"qemu": "QEMU emulator version 7.2.22"},
    "guestmark": {"version": "0.2.0"},
}


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with open_ledger(tmp_path / "ledger.sqlite") as opened:
        yield opened


def a_run(
    ledger: Ledger,
    ratio: float = 2.0,
    *,
    environment: Mapping[str, Any] = ENVIRONMENT,
    uml: Cell | None = None,
    null: float = 1.0,
    **changes: Any,
) -> Analysis:
    """Measures, stores and judges a run in which uml took `ratio` times the host's time."""
    cells: list[tuple[Cell, float | None]] = [
        (Cell("host", uml.workload if uml else EXEC, HOST, {}, True), 1.0),
        (uml or Cell("uml", EXEC, PlatformSpec.read("uml"), {}, processors=1), ratio),
        (
            replace(Cell("host#2", uml.workload if uml else EXEC, HOST), null_of="host"),
            null,
        ),
    ]
    gates = changes.pop("gates", ())
    made = constructed(cells, blocks=changes.pop("blocks", 6), **changes)
    plan = replace(made.plan, context=replace(made.plan.context, gates=gates))
    run_id = ledger.create_run(plan, environment, 1)
    for trial in made.trials:
        ledger.store_trial(run_id, replace(trial, command_line=("/usr/bin/qemu",)))
    ledger.set_run_state(run_id, RunState.COMPLETE)
    stored = ledger.load_run(run_id)
    analysis = analyse_with_history(ledger, stored)
    store_ratios(ledger, stored, analysis)
    return analysis


def told(analysis: Analysis) -> str:
    return str(make_conclusion(analysis))


def test_the_first_run_has_no_history(ledger: Ledger) -> None:
    first = a_run(ledger)
    assert first.history == History()
    assert "Measured here before" not in told(first)


def test_a_ratio_is_held_against_earlier_runs(ledger: Ledger) -> None:
    few = [a_run(ledger, ratio) for ratio in (2.0, 2.2, 2.1, 2.0)][-1]
    assert "3 earlier runs here, ×1.992 to ×2.192; 4 would show whether it changed" in told(few)
    same, other = a_run(ledger, 2.15), a_run(ledger, 3.0)
    assert [run.ratio for run in same.history.ratios["uml"]] == pytest.approx([2.0, 2.2, 2.1, 2.0], rel=0.02)
    assert "of them: no change shown" in told(same)
    assert "5 earlier runs here" in told(other)
    assert "of them: changed" in told(other)
    assert "Nothing recorded about the host has changed" in told(other)


def test_an_earlier_run_is_shown_as_it_was_then(ledger: Ledger) -> None:
    a_run(ledger, 2.0)
    second = a_run(ledger, 2.0)
    a_run(ledger, 9.0)
    ids = [run.id for run in ledger.list_runs()]
    again = ledger.load_run(ids[1])
    assert analyse_with_history(ledger, again).history == second.history


def test_what_changed_since_is_named(ledger: Ledger) -> None:
    a_run(ledger)
    a_run(ledger, environment={**ENVIRONMENT, "guestmark": {"version": "0.1.9"}})
    new = a_run(
        ledger,
        environment={
            **ENVIRONMENT,
            "kernel": {"release": "6.1.0-43-amd64"},
            "programs": {"qemu": "QEMU emulator version 8.0.0"},
        },
    )
    assert new.history.changed == {
        "kernel": "6.1.0-41-amd64 → 6.1.0-43-amd64",
        "qemu": "7.2.22 → 8.0.0",
        "guestmark": "0.1.9 → 0.2.0",
    }
    assert new.history.between == {"guestmark": "0.2.0 → 0.1.9"}
    assert "Since then: kernel 6.1.0-41-amd64 → 6.1.0-43-amd64, qemu 7.2.22 → 8.0.0" in told(new)


def test_only_the_same_question_on_the_same_host_counts(ledger: Ledger) -> None:
    a_run(ledger)
    uml = PlatformSpec.read("uml")
    others = (
        Cell("uml", EXEC, uml, {"memory": "2G"}, processors=1),
        Cell("uml", EXEC, PlatformSpec.read("tcg"), {}, processors=1),
        Cell("uml", EXEC, uml, {}, processors=2),
        Cell("uml", MEMORY, uml, {}, processors=1),
    )
    for cell in others:
        assert not a_run(ledger, uml=cell).history.ratios, cell
    for environment in (
        {**ENVIRONMENT, "machine": "another"},
        {**ENVIRONMENT, "processor": {**ENVIRONMENT["processor"], "model": "Core 5"}},
        {name: value for name, value in ENVIRONMENT.items() if name != "machine"},
    ):
        assert a_run(ledger, environment=environment).history == History()
    assert a_run(ledger).history.ratios["uml"]
    renamed = Cell("uml now", EXEC, uml, {}, processors=1)
    assert a_run(ledger, uml=renamed).history.ratios["uml now"]  # whatever it is called


def test_the_document_has_the_history(ledger: Ledger) -> None:
    for _ in range(4):
        a_run(ledger, 2.0)
    analysis = a_run(ledger, 3.0)
    run = ledger.load_run("last")
    document = make_result_document(run, analysis)
    json.dumps(document)
    by_id = {cell["id"]: cell["history"] for cell in document["cells"]}
    assert by_id["host"] is None
    assert by_id["uml"]["outside"] is True
    assert by_id["uml"]["lowest"] <= by_id["uml"]["runs"][0]["ratio"] <= by_id["uml"]["highest"]
    assert by_id["uml"]["runs"][0]["id"] == ledger.list_runs()[0].id
    assert document["since_earlier_runs"] == {}


def test_the_floor_learns_from_earlier_null_comparisons(ledger: Ledger) -> None:
    alone = a_run(ledger).workloads[0].noise_floors["wall_s"]
    floors = [a_run(ledger, null=null).workloads[0].noise_floors["wall_s"] for null in (1.003, 0.997, 1.0)]
    assert floors[0] == pytest.approx(alone, abs=0.004)
    for null in (1.004, 0.996, 1.005, 0.995):
        a_run(ledger, null=null)
    learnt = a_run(ledger)
    assert len(learnt.history.nulls["host"]) >= 7
    assert learnt.workloads[0].noise_floors["wall_s"] >= alone
    comparison = next(result for result in learnt.cells if result.cell.id == "uml").comparison["wall_s"]
    assert comparison.noise_floor == learnt.workloads[0].noise_floors["wall_s"]


def test_few_null_comparisons_and_those_of_other_durations_say_nothing() -> None:
    def known(count: int, typical: float = 1.0) -> list[PastNull]:
        return [PastNull(0.1, 8, typical)] * count

    assert History(nulls={"host": known(FEWEST_NULLS)}).find_similar_nulls("host", 1.0)
    assert not History(nulls={"host": known(FEWEST_NULLS - 1)}).find_similar_nulls("host", 1.0)
    assert not History(nulls={"host": known(9, 10.0)}).find_similar_nulls("host", 1.0)
    assert not History(nulls={"host": known(9, 0.1)}).find_similar_nulls("host", 1.0)
    assert not History(nulls={"host": known(9)}).find_similar_nulls("uml", 1.0)


def test_earlier_nulls_decide_the_verdict(ledger: Ledger) -> None:
    """Copies that were off by 8 % in five runs, one way or the other: a ratio of 1.05 is no longer claimed."""
    first = a_run(ledger, 1.05)
    for _ in range(4):
        a_run(ledger, 1.05)
    rows = ledger.find_earlier_ratios(*_question(ledger), before=time.time() + 1)
    assert rows
    for number, row in enumerate(rows):
        ledger.store_ratios(row.run_id, [replace(row, log_ratio=0.08 * (-1) ** number)])
    last = a_run(ledger, 1.05)

    def verdict(analysis: Analysis) -> tuple[str, str]:
        comparison = next(result for result in analysis.cells if result.cell.id == "uml").comparison["wall_s"]
        return comparison.verdict.value, comparison.reason

    assert verdict(first)[0] == "slower"
    assert verdict(last) == ("inconclusive", WIDENED_REASON)


def test_removed_runs_take_no_place_of_earlier_ones(ledger: Ledger) -> None:
    for _ in range(6):
        a_run(ledger)
    host, what = _question(ledger)
    kept, removed = [run.id for run in ledger.list_runs()][:3], [run.id for run in ledger.list_runs()][3:]
    assert guestmark("rm", *removed, GUESTMARK_LEDGER=ledger.where).returncode == 0
    found = ledger.find_earlier_ratios(host, what, time.time() + 1, most=2)
    assert [row.run_id for row in found] == kept[1:]


def _question(ledger: Ledger) -> tuple[str, list[str]]:
    """Host and question of the null comparisons in the index."""
    with closing(sqlite3.connect(ledger.where)) as link:
        host, what = link.execute("SELECT host, what FROM comparisons WHERE cell_id = 'host#2'").fetchone()
    return host, [what]


def indexed(ledger: Ledger) -> set[str]:
    with closing(sqlite3.connect(ledger.where)) as link:
        return {cell for (cell,) in link.execute("SELECT cell_id FROM comparisons")}


def test_what_is_refused_or_disturbed_is_not_remembered(ledger: Ledger) -> None:
    hot = {("uml", block): {"throttled": 1} for block in range(6)}
    a_run(ledger, noise=hot)
    assert indexed(ledger) == set()  # uml is refused, and the host's copies were on a disturbed one
    a_run(ledger, blocks=5)
    assert indexed(ledger) == set()  # intervals of five blocks are another estimate's
    a_run(ledger, null=1.2, blocks=10)
    assert indexed(ledger) == {"uml", "host#2"}  # copies that differ are what later runs have to know
    a_run(ledger)
    assert indexed(ledger) == {"uml", "host#2"}


def test_a_run_that_ends_again_replaces_what_it_found(ledger: Ledger) -> None:
    a_run(ledger, 2.0)
    run = ledger.load_run("last")
    analysis = analyse_with_history(ledger, run)
    store_ratios(ledger, run, analysis)
    store_ratios(ledger, run, analysis)
    with closing(sqlite3.connect(ledger.where)) as link:
        assert link.execute("SELECT count(*) FROM comparisons").fetchone()[0] <= 2


def test_a_ledger_without_the_index_is_read_and_shown(tmp_path: Path) -> None:
    file = tmp_path / "ledger.sqlite"
    with open_ledger(file) as ledger:
        a_run(ledger)
        run_id = ledger.list_runs()[0].id
    with closing(sqlite3.connect(file)) as link:
        link.execute("DROP TABLE comparisons")
        link.commit()
    with open_ledger(file, writable=False) as ledger:
        assert read_history(ledger, ledger.load_run(run_id)) == History()
    with open_ledger(file) as ledger:
        a_run(ledger)  # makes it anew
        assert indexed(ledger) == {"uml", "host#2"}


def test_a_ledger_of_500_runs_is_looked_through_in_no_time(tmp_path: Path) -> None:
    """Trials are not read: every one but this run's is damaged."""
    file = tmp_path / "ledger.sqlite"
    with open_ledger(file) as ledger:
        a_run(ledger)
    with closing(sqlite3.connect(file)) as link:
        (first,) = link.execute("SELECT id FROM runs").fetchone()
        for number in range(500):
            for table, others in (
                ("runs", "name, created_at - 1000 + :n, seed, state, owner, plan"),
                ("environments", "position, body"),
                ("trials", "block, cell_id, position, status, started_at, duration_s, 'damaged', console"),
                (
                    "comparisons",
                    "cell_id, host, what, created_at - 1000 + :n, log_ratio, low, high, blocks, typical",
                ),
            ):
                column = "id" if table == "runs" else "run_id"
                link.execute(
                    f"INSERT INTO {table} SELECT :id, {others} FROM {table} WHERE {column} = :first",
                    {"id": f"copy-{number}", "n": number, "first": first},
                )
        link.commit()
    with open_ledger(file) as ledger, ledger.write_transaction("signing the copies") as connection:
        for number in range(500):
            signatures.sign_run(connection, f"copy-{number}")
    with open_ledger(file, writable=False) as ledger:
        run = ledger.load_run(first)
        read_history(ledger, run)
        begin = time.perf_counter()
        found = read_history(ledger, run)
        took = time.perf_counter() - begin
    assert len(found.ratios["uml"]) == 20
    assert found.ratios["uml"][-1].run_id == "copy-499"
    assert len(found.nulls["host"]) == 20
    assert took < 0.1


def test_more_history_makes_the_test_of_a_change_stronger() -> None:
    generator = np.random.default_rng(1)

    def found(runs: int, effect: float) -> float:
        """How often a change is shown, where runs differ by 2 % and are known to 1 % inside."""
        shown = 0
        for _ in range(400):
            logs = generator.normal(0, 0.02, runs + 1)
            logs[-1] += effect
            past = [
                PastRatio(str(i), i, math.exp(log), math.exp(log - 0.01), math.exp(log + 0.01), 12)
                for i, log in enumerate(logs)
            ]
            change = compare_with_earlier(past[-1], past[:-1])
            shown += change is not None and change.verdict is not ChangeVerdict.ALIKE
        return shown / 400

    assert found(3, 0.1) == 0  # too few to tell
    few, many = found(5, 0.1), found(20, 0.1)
    assert many > 0.8
    assert few < many
    assert found(5, 0.0) <= 0.045
    assert found(20, 0.0) <= 0.045
