"""Runs in the schemas of other programs, read as those programs read them."""

import json
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

from scipy import stats

from guestmark.report.export_format import Format
from guestmark.report.formats import export_run
from tests.framework.command_line import CommandLine
from tests.framework.runs import host_uml_tcg


def test_hyperfines_scripts_find_what_they_read(guestmark: CommandLine, tmp_path: Path) -> None:
    """What its scripts for means, whiskers, parametrized plots and Welch's test do with the file."""
    file = tmp_path / "result.json"
    done = guestmark(
        "exec", "--on", "host", "-r", "3", "--null", "none", "--export-json", str(file), "-L", "n", "1,2",
        "--", "sh", "-c", "exit $(({n} - {n}))",
    )  # fmt: skip
    assert done.status == 0, done.stderr
    results = json.loads(file.read_text())["results"]
    first, second = results
    assert {
        "command",
        "mean",
        "stddev",
        "median",
        "user",
        "system",
        "min",
        "max",
        "times",
        "exit_codes",
    } <= first.keys()
    assert [each["parameters"] for each in results] == [{"n": "1"}, {"n": "2"}]
    for each in results:
        times = each["times"]
        assert len(times) == len(each["exit_codes"]) >= 3
        assert set(each["exit_codes"]) == {0}
        assert each["mean"] == statistics.fmean(times)
        assert each["stddev"] == statistics.stdev(times)
        assert each["median"] == statistics.median(times)
        assert (each["min"], each["max"]) == (min(times), max(times))
    assert [each["command"] for each in results] == [f"sh -c 'exit $(({n} - {n}))'" for n in (1, 2)]
    assert stats.ttest_ind(first["times"], second["times"], equal_var=False).pvalue > 0


def read(form: Format) -> Any:
    return json.loads(export_run(host_uml_tcg(blocks=8, failing={("uml", 1)}), form))


def test_cells_of_one_command_have_names_of_their_own() -> None:
    results = read(Format.HYPERFINE)["results"]
    assert [each["command"] for each in results] == [
        f"sysbench cpu run ({cell})" for cell in ("host", "uml", "tcg")
    ]
    assert [len(each["times"]) for each in results] == [8, 7, 8]


def test_bencher_has_a_value_with_its_interval_for_each_measure() -> None:
    found = read(Format.BENCHER)
    assert found.keys() == {f"sysbench cpu run ({cell})" for cell in ("host", "uml", "tcg")}
    for measures in found.values():
        wall = measures["wall_s"]
        assert wall["lower_value"] < wall["value"] < wall["upper_value"]


def test_bencher_alerts_to_each_gate_that_is_not_kept() -> None:
    """Its boundary is 0: a gate that is undecided must not pass, as it would with no value at all."""
    run = host_uml_tcg(blocks=8)
    gates = ("uml > +100%", "tcg > +2%", "uml > +6%", "tcg lost")
    run = replace(run, plan=replace(run.plan, context=replace(run.plan.context, gates=gates)))
    found = json.loads(export_run(run, Format.BENCHER))
    own = {
        (name.rpartition("(")[2].rstrip(")"), measure): tuple(value.values())
        for name, measures in found.items()
        for measure, value in measures.items()
        if measure.startswith("gate ")
    }
    assert own.pop(("uml", "gate uml > +6%"))[0] in {0.5, 0.0}
    assert own == {
        ("uml", "gate uml > +100%"): (0.0,),
        ("tcg", "gate tcg > +2%"): (1.0,),
        ("tcg", "gate tcg lost"): (0.5, 0.0, 1.0),  # its power was not cut
    }


def test_the_action_has_a_list_of_names_units_and_values() -> None:
    found = read(Format.GITHUB)
    assert [(each["name"].rpartition("(")[2], each["unit"]) for each in found] == [
        ("host)", "s"),
        ("uml)", "s"),
        ("tcg)", "s"),
    ]
    assert all(isinstance(each["value"], float) and " to " in each["range"] for each in found)
