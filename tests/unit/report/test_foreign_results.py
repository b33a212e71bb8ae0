"""Results of other programs, imported as runs that can be shown and compared, and that nothing rests on."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guestmark.core.errors import LedgerError
from guestmark.core.metric import Better
from guestmark.engine import imported_results
from guestmark.report.export_format import Format
from guestmark.report.formats import export_run
from guestmark.stats.analysis import analyse_run
from guestmark.stats.compare import Verdict
from tests.framework import CHECKOUT
from tests.framework.command_line import CommandLine

HYPERFINE: dict[str, Any] = {
    "results": [
        {"command": "sleep 0.1", "mean": 0.11, "times": [0.1, 0.12, 0.11], "parameters": {"d": "0.1"}},
        {"command": "sleep 0.2", "mean": 0.2, "times": [0.2] * 10, "memory_usage_byte": [4096] * 10},
    ]
}
PHORONIX_JSON = {
    "title": "a comparison",
    "systems": {"kvm": {}, "host": {}},
    "results": {
        "ab12": {
            "identifier": "pts/compress-7zip-1.7.0",
            "title": "7-Zip Compression",
            "arguments": "",
            "description": "Test: Compression Rating",
            "scale": "MIPS",
            "proportion": "HIB",
            "results": {"kvm": {"value": 1000, "all_results": [990, 1000, 1010]}, "host": {"value": 2000}},
        }
    },
}
PHORONIX_XML = """<?xml version="1.0"?>
<PhoronixTestSuite><System><Identifier>kvm</Identifier></System>
<Result><Identifier>pts/build-1.0</Identifier><Title>Build</Title><Description>Time</Description>
<Scale>Seconds</Scale><Proportion>LIB</Proportion><Data>
<Entry><Identifier>kvm</Identifier><Value>10</Value><RawString>9:10:11</RawString></Entry>
<Entry><Identifier>host</Identifier><Value>5</Value></Entry>
<Entry><Identifier>broken</Identifier><Value></Value></Entry></Data></Result></PhoronixTestSuite>"""
FIO = (CHECKOUT / "tests/unit/golden/fio/debian12.json").read_text()
FILES = {
    "hyperfine": json.dumps(HYPERFINE),
    "phoronix": json.dumps(PHORONIX_JSON),
    "phoronix xml": PHORONIX_XML,
    "fio": FIO,
}


@pytest.mark.parametrize("name", FILES)
def test_each_becomes_a_run_that_is_shown_and_decides_nothing(name: str) -> None:
    (packed,) = imported_results.read_results(FILES[name].encode(), name)
    run = packed.run
    found = analyse_run(run.plan, run.trials)
    verdicts = {comparison.verdict for cell in found.cells for comparison in cell.comparison.values()}
    assert verdicts <= {Verdict.INCONCLUSIVE}
    for form in Format:
        assert export_run(run, form)


def test_figures_are_those_of_the_files() -> None:
    def values(name: str) -> list[dict[str, tuple[float, ...]]]:
        (packed,) = imported_results.read_results(FILES[name].encode(), name)
        return [
            {each.metric.name: each.iterations for each in trial.measurements} for trial in packed.run.trials
        ]

    assert values("hyperfine") == [
        {"wall_s": (0.1, 0.12, 0.11)},
        {"wall_s": (0.2,) * 10, "max_rss_bytes": (4096.0,) * 10},
    ]
    assert [list(each.values()) for each in values("phoronix")] == [[(990.0, 1000.0, 1010.0)], [(2000.0,)]]
    assert [list(each.values()) for each in values("phoronix xml")] == [[(9.0, 10.0, 11.0)], [(5.0,)]]
    job = json.loads(FIO)["jobs"][0]
    (fio,) = values("fio")
    assert fio["throughput"] == (job["read"]["bw_bytes"] + job["write"]["bw_bytes"],)
    assert fio["read_latency_avg_s"] == (job["read"]["lat_ns"]["mean"] / 1e9,)


_LABELS = st.sampled_from(["a", "a (2)", "a (2) (2)", "b", "x" * 200 + "1", "x" * 200 + "2", "x" * 200])


@given(st.lists(_LABELS, min_size=1, max_size=12))
def test_each_benchmark_has_a_name_of_its_own(labels: list[str]) -> None:
    text = json.dumps({"results": [{"command": label, "times": [0.1, 0.2]} for label in labels]})
    (packed,) = imported_results.read_results(text.encode(), "hyperfine")
    names = [cell.id for cell in packed.run.plan.cells]
    assert len(set(names)) == len(labels)
    assert all(name.startswith(label[:200]) for name, label in zip(names, labels, strict=True))


def test_the_suite_says_which_direction_is_better() -> None:
    for name, better in {"phoronix": Better.HIGHER, "phoronix xml": Better.LOWER}.items():
        (packed,) = imported_results.read_results(FILES[name].encode(), name)
        assert {metric.better for metric in packed.run.plan.metrics} == {better}


@pytest.mark.parametrize("name", FILES)
def test_damaged_files_are_refused_in_one_line(name: str) -> None:
    """Cut short, or with bytes and values that are none: a run, or one line."""
    rng, text = random.Random(7), FILES[name]
    swaps = [
        (":", ": null, "),
        ("[", "[{}, "),
        ("0", "NaN"),
        ("1", "-1e999"),
        (">", "><"),
        ('"', ""),
        ("1", "x"),
    ]
    damaged = [text[: rng.randrange(len(text))] for _ in range(60)]
    for _ in range(200):
        old, new = rng.choice(swaps)
        at = text.find(old, rng.randrange(len(text)))
        damaged.append(text[:at] + new + text[at + len(old) :] if at >= 0 else text[:-1])
    refused: list[LedgerError] = []
    for each in damaged:
        try:
            imported_results.read_results(each.encode(), "file")
        except LedgerError as error:
            refused.append(error)
    assert len(refused) > 60
    for each_error in refused:
        assert "\n" not in each_error.message
        assert each_error.message.startswith("file cannot be imported: ")
        assert each_error.hint


HOSTILE = {
    "entities": '<!DOCTYPE x [<!ENTITY a "aaaa">]><PhoronixTestSuite>&a;</PhoronixTestSuite>',
    "deep": "[" * 100_000,
    "deep in a result": '{"results": ' + "[" * 100_000,
    "empty": '{"results": []}',
    "no times": '{"results": [{"command": "x", "mean": null, "times": []}]}',
    "a failed job": '{"jobs": [{"jobname": "x", "error": 5}]}',
    "true": '{"results": [{"command": "x", "times": [true]}]}',
    "huge": '{"results": [{"command": "x", "times": [1e300]}]}',
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_hostile_files_are_refused(text: str) -> None:
    with pytest.raises(LedgerError, match="cannot be imported"):
        imported_results.read_results(text.encode(), "file")


def test_the_verb_imports_and_shows_them_and_remembers_none(guestmark: CommandLine, tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    file.write_text(FILES["hyperfine"])
    for _ in range(2):
        done = guestmark("import", str(file))
        assert done.status == 0, done.stderr
    trusted = guestmark("import", "--trust", str(file))
    assert (trusted.status, trusted.stderr.count("\n")) == (2, 2)
    assert "1 there already" in done.stderr
    shown = guestmark("show", "last")
    assert "comes from" in shown.stdout
    assert "sleep 0.2" in shown.stdout
    assert "foreign=hyperfine" in guestmark("runs").stdout
    refused = guestmark("resume", "last", "--blocks", "3")
    assert refused.status != 0
    assert "--trust" in refused.stderr
