"""Documents and exports of constructed runs, read back by independent readers."""

import csv
import io
import itertools
import json
import math
import os
import re
import stat
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import guestmark
from guestmark.cli.outputs import write_file
from guestmark.core.errors import GuestmarkError, UsageError
from guestmark.core.findings import Facts
from guestmark.core.metric import Measurement, Metric
from guestmark.core.model import Trial
from guestmark.ledger import open_ledger
from guestmark.ledger.bundle import unpack_runs
from guestmark.ledger.model import StoredRun
from guestmark.page.text import escape_for_csv
from guestmark.report.document import make_result_document
from guestmark.report.export_format import Format
from guestmark.report.formats import export_run
from guestmark.report.long_form import list_column_names, make_trial_rows
from guestmark.report.render.markdown import format_code_span
from guestmark.report.shared_facts import restore_shared, split_shared
from tests.framework import CHECKOUT, GOLDEN
from tests.framework.known import known
from tests.framework.run_kinds import with_metrics
from tests.framework.runs import host_uml_tcg, memory_sweep, renamed


def test_the_document_has_the_keys_that_stay() -> None:
    document = make_result_document(host_uml_tcg(failing={("uml", 3)}))
    assert document["schema"] == "guestmark-result/2"
    assert {"schema", "run", "plan", "environment", "cells"} <= document.keys()
    assert [cell["id"] for cell in document["cells"]] == ["host", "uml", "kvm", "tcg"]
    (null,) = document["null_cells"]
    assert (null["id"], null["null_of"], null["differs"]) == ("host#2", "host", [])
    assert len(null["trials"]) == len(document["cells"][0]["trials"])
    uml = document["cells"][1]
    assert {
        "id", "workload", "platform", "factors", "baseline", "status", "reason", "trials", "summary", "vs_baseline"
    } <= uml.keys()  # fmt: skip
    assert {"block", "order", "status", "measurements", "reason"} <= uml["trials"][0].keys()
    assert uml["trials"][0]["measurements"].keys() == {
        "wall_s", "guest_wall_s", "user_s", "system_s", "max_rss_bytes"
    }  # fmt: skip
    assert uml["trials"][3]["status"] == "failed"
    assert uml["trials"][3]["reason"] == "died by signal 11"
    assert uml["trials"][3]["console"] == "oops"
    assert {"unit", "better", "n", "mean", "median", "ci"} <= uml["summary"]["wall_s"].keys()
    assert {"ratio", "ci", "median_ratio", "median_ci", "p", "verdict"} <= uml["vs_baseline"]["wall_s"].keys()
    low, high = uml["vs_baseline"]["wall_s"]["ci"]
    assert low < uml["vs_baseline"]["wall_s"]["ratio"] < high
    assert uml["vs_baseline"]["wall_s"]["verdict"] == "slower"
    assert (uml["status"], uml["baseline"], uml["factors"]) == ("partial", False, {})
    kvm = document["cells"][2]
    assert (kvm["status"], kvm["reason"], kvm["trials"]) == ("unusable", "no guest gets ready", [])
    assert document["run"]["id"] == "20261121-213000-k3f"
    assert document["run"]["created_at"] == "2026-11-21T21:30:00.500Z"


def in_facts(trial: Trial, facts: dict[str, object], line: tuple[str, ...]) -> Trial:
    return replace(trial, facts=Facts(facts), command_line=line)


FOUND: tuple[dict[str, object], ...] = (
    {"guest": {"kernel": "6.1", "boot_id": "a", "flags": ["x", "y"]}, "one": 1, "none": None},
    {"guest": {"kernel": "6.1", "boot_id": "b", "flags": ["x", "y"]}, "one": True, "none": None},
    {"guest": {"kernel": "6.1", "boot_id": None, "flags": ["x"]}, "one": 1.0, "none": None, "more": {}},
    {},  # died before it was attested
)


def test_what_trials_have_in_common_is_in_the_document_once() -> None:
    run = host_uml_tcg(blocks=4)
    facts = itertools.cycle(FOUND)
    trials = tuple(
        in_facts(trial, next(facts), ("qemu", "-m", "1G", f"fd={trial.block}") if trial.block else ())
        for trial in sorted(run.trials, key=lambda trial: (trial.cell_id, trial.block))
    )
    document = json.loads(export_run(replace(run, trials=trials), Format.JSON))
    for cell in document["cells"]:
        if not cell["trials"]:
            continue
        assert cell["shared"]["attestation"] == {"guest": {"kernel": "6.1"}, "none": None}
        assert cell["shared"]["command_line"] == ["qemu", "-m", "1G", None]
        assert [trial["command_line"] for trial in cell["trials"]] == [None, ["fd=1"], ["fd=2"], ["fd=3"]]
        assert cell["trials"][3]["attestation"] is None
    again = restore_shared(document)
    assert again["schema"] == "guestmark-result/1"
    for cell in again["cells"]:
        assert "shared" not in cell
        attested = [trial["attestation"] for trial in cell["trials"]]
        assert (
            list(map(repr, map(in_order, attested))) == list(map(repr, map(in_order, FOUND)))[: len(attested)]
        )
        lines = [trial["command_line"] for trial in cell["trials"]]
        assert lines == [[], *(["qemu", "-m", "1G", f"fd={number}"] for number in (1, 2, 3))][: len(lines)]


def in_order(value: object) -> object:
    return {key: in_order(value[key]) for key in sorted(value)} if isinstance(value, dict) else value


plain = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2) | st.sampled_from([0.0, 1.0, 1.5]) | st.text(max_size=2),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=6,
)


@given(
    st.lists(
        st.fixed_dictionaries({
            "attestation": st.dictionaries(st.sampled_from("abc"), plain, max_size=3),
            "command_line": st.lists(st.sampled_from(["", "x", "y"]), max_size=3),
        }),
        max_size=4,
    )
)  # fmt: skip
def test_trials_are_whole_again(trials: list[dict[str, object]]) -> None:
    shared, own = split_shared(trials)
    stored = json.loads(json.dumps({"shared": shared, "trials": own}))
    (cell,) = restore_shared({"schema": "guestmark-result/2", "cells": [stored], "null_cells": []})["cells"]
    assert cell.keys() == {"trials"}
    assert repr(list(map(in_order, cell["trials"]))) == repr(list(map(in_order, trials)))


def test_documents_of_both_versions_are_read(tmp_path: Path) -> None:
    document = make_result_document(host_uml_tcg(blocks=2))
    file = tmp_path / "result.json"
    file.write_text(json.dumps(document))
    read = guestmark.read_document(file)
    assert read["cells"][0]["trials"][0]["attestation"] == {}
    file.write_text(json.dumps(read))
    assert guestmark.read_document(file) == read


@pytest.mark.parametrize(
    "text", ["", "[]", "7", '{"schema": "x"}', '{"schema": "guestmark-result/2"}', "[" * 9999]
)
def test_another_file_is_no_document(tmp_path: Path, text: str) -> None:
    (tmp_path / "other.json").write_text(text)
    with pytest.raises(UsageError, match=r"^[^\n]*other\.json is not a result document of guestmark$"):
        guestmark.read_document(tmp_path / "other.json")


def test_a_document_of_eight_blocks_is_small() -> None:
    """The run of the README: three platforms and a null copy, 32 trials with all that was attested."""
    (packed,) = unpack_runs((CHECKOUT / "docs/_static/readme-run.gmk").read_bytes(), "the README's run")
    assert len(export_run(packed.run, Format.JSON)) < 100_000


def strict(data: bytes) -> object:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} in JSON")

    return json.loads(data.decode("utf-8"), parse_constant=refuse)


def test_json_is_strict_whatever_was_measured() -> None:
    run = host_uml_tcg(blocks=1, values={("uml", 0): math.nan, ("tcg", 0): math.inf, ("host", 0): -math.inf})
    odd = replace(
        run,
        environments=({"load": math.nan, "name": "a\udcffb"},),
        trials=tuple(replace(trial, reason="\ud800 x", phases={"ready": math.inf}) for trial in run.trials),
    )
    document = strict(export_run(odd, Format.JSON))
    assert isinstance(document, dict)
    assert document["environment"] == {"load": None, "name": "a���b"}
    assert document["cells"][1]["trials"][0]["measurements"]["wall_s"] is None
    assert strict(export_run(host_uml_tcg(blocks=0), Format.JSON))


def test_documents_do_not_hold_environment_variables() -> None:
    for form in (Format.JSON, Format.CSV, Format.MARKDOWN, Format.PARQUET):
        assert b"secret" not in export_run(host_uml_tcg(blocks=2), form)
    plan = make_result_document(host_uml_tcg(blocks=1))["plan"]
    assert plan["context"]["env_names"] == ["HOME", "PASSWORD"]
    assert plan["context"]["cwd"] == "/tmp"


def test_a_run_from_the_ledger_gives_the_same_document(tmp_path: Path) -> None:
    run = memory_sweep(failing={("tcg memory=2G", 4)})
    with open_ledger(tmp_path / "ledger.sqlite") as ledger:
        run_id = ledger.create_run(run.plan, run.environment, run.seed)
        for trial in reversed(run.trials):
            ledger.store_trial(run_id, trial)
        stored = ledger.load_run(run_id)
    assert make_result_document(stored)["cells"] == make_result_document(run)["cells"]
    assert make_result_document(stored)["plan"] == make_result_document(run)["plan"]


def test_json_order_is_stable() -> None:
    run = memory_sweep()
    assert export_run(run, Format.JSON) == export_run(replace(run, trials=tuple(run.trials)), Format.JSON)
    assert list(make_result_document(run))[:5] == [
        "schema",
        "run",
        "plan",
        "environment",
        "environments_resumed",
    ]


def test_csv_holds_every_measurement_and_every_failure() -> None:
    run = memory_sweep(blocks=3, failing={("tcg memory=2G", 1)})
    rows = list(csv.DictReader(io.StringIO(export_run(run, Format.CSV).decode())))
    assert len(rows) == (4 * 3 - 1) * 5 + 1
    assert rows[0]["factor_memory"] == "1G"
    assert rows[0]["metric"] == "wall_s"
    assert float(rows[0]["value"]) == run.trials[0].measurements[0].value  # exactly
    (failed,) = [row for row in rows if row["status"] == "failed"]
    assert (failed["metric"], failed["value"], failed["reason"]) == ("", "", "died by signal 11")
    assert {row["baseline"] for row in rows} == {"true", "false"}


def with_warmups(run: StoredRun, warm: float = 2.0) -> StoredRun:
    """Each trial with two more iterations, and before them a warm-up that took `warm` times as long."""

    def more(measurement: Measurement) -> Measurement:
        return replace(measurement, iterations=tuple(measurement.value * each for each in (0.99, 1.0, 1.01)))

    def before(measurement: Measurement) -> Measurement:
        return Measurement(measurement.metric, warm * measurement.value, (warm * measurement.value,))

    return replace(
        run,
        trials=tuple(
            replace(
                trial,
                measurements=tuple(map(more, trial.measurements)),
                warmups=tuple(map(before, trial.measurements)),
                run_s=(1.0,) * 4,
            )
            for trial in run.trials
        ),
    )


def test_every_single_run_is_in_the_ledger_and_in_every_export_of_figures(tmp_path: Path) -> None:
    import polars

    made = with_warmups(host_uml_tcg(blocks=7))
    with open_ledger(tmp_path / "ledger.sqlite") as ledger:
        run_id = ledger.create_run(made.plan, made.environment, made.seed)
        for trial in made.trials:
            ledger.store_trial(run_id, trial)
        run = ledger.load_run(run_id)
    wanted = {
        (trial.cell_id, trial.block, measurement.metric.name): (
            list(warmup.iterations),
            list(measurement.iterations),
        )
        for trial in made.trials
        for measurement, warmup in zip(trial.measurements, trial.warmups, strict=True)
    }
    document = strict(export_run(run, Format.JSON))
    assert isinstance(document, dict)
    in_json = {
        (cell["id"], trial["block"], name): (trial["warmups"][name], values)
        for cell in document["cells"] + document["null_cells"]
        for trial in cell["trials"]
        for name, values in trial["iterations"].items()
    }
    assert in_json == wanted
    rows = csv.DictReader(io.StringIO(export_run(run, Format.CSV).decode()))
    in_csv = {
        (row["cell"], int(row["block"]), row["metric"]): tuple(
            [float(value) for value in row[name].split()] for name in ("warmup_values", "iteration_values")
        )
        for row in rows
    }
    assert in_csv == wanted
    frame = polars.read_parquet(io.BytesIO(export_run(run, Format.PARQUET)))
    in_parquet = {
        (row["cell"], row["block"], row["metric"]): (row["warmup_values"], row["iteration_values"])
        for row in frame.rows(named=True)
    }
    assert in_parquet == wanted


def test_the_four_answers_are_in_every_export() -> None:
    run = with_warmups(host_uml_tcg())
    document = strict(export_run(run, Format.JSON))
    assert isinstance(document, dict)
    tcg = next(cell for cell in document["cells"] if cell["id"] == "tcg")
    answers = tcg["answers"]["wall_s"]
    assert answers["typical"] == tcg["vs_baseline"]["wall_s"]
    assert {name: answers[name]["verdict"] for name in ("total", "slow", "first")} == {
        "total": "slower", "slow": "inconclusive", "first": "slower"
    }  # fmt: skip
    low, high = answers["total"]["ci"]
    worst_low, worst_high = answers["total"]["pessimistic_ci"]
    assert worst_low < low < answers["total"]["ratio"] < high < worst_high
    assert answers["total"]["seen_ci"] == [low, high]
    assert answers["slow"]["cell"]["iterations"] == 36
    assert answers["unseen"]["starts"] == pytest.approx(1 - 0.05 ** (1 / 12))
    assert answers["unseen"]["iterations"] == pytest.approx(1 - 0.05 ** (1 / 36))
    assert document["cells"][0]["answers"] == {}
    row = next(row for row in make_trial_rows(run) if (row["cell"], row["metric"]) == ("tcg", "wall_s"))
    assert (row["typical_ratio"], row["typical_verdict"]) == (answers["typical"]["ratio"], "slower")
    assert [row["total_low"], row["total_high"]] == answers["total"]["ci"]
    assert (row["slow_difference"], row["slow_verdict"]) == (answers["slow"]["difference"], "inconclusive")
    assert (row["first_ratio"], row["first_verdict"]) == (answers["first"]["ratio"], "slower")
    secondary = next(row for row in make_trial_rows(run) if (row["cell"], row["metric"]) == ("tcg", "user_s"))
    assert secondary["typical_verdict"] == "slower"
    assert secondary["total_verdict"] is None


def test_csv_survives_any_command_line() -> None:
    label = "sh -c 'echo \"a,b\"\n; x'"
    run = renamed(host_uml_tcg(blocks=1), label)
    rows = list(csv.DictReader(io.StringIO(export_run(run, Format.CSV).decode(), newline="")))
    assert {row["workload"] for row in rows} == {label}


def test_csv_holds_nothing_that_a_terminal_or_a_spreadsheet_obeys() -> None:
    """Whatever a command line, a factor or a reason says."""
    for label in (
        "=cmd|' /C calc'!A0",
        "+1+1",
        "-2+3",
        "@SUM(1)",
        "\t=1",
        "\n=1",
        "\x1b]0;x\x07",
        "\u202e=1",
        "－1＋1",
    ):
        run = renamed(host_uml_tcg(blocks=1), label)
        text = export_run(run, Format.CSV).decode()
        assert not set(text) & set("\x1b\x07\u202e")
        for row in csv.reader(io.StringIO(text, newline="")):
            assert not [cell for cell in row if cell.lstrip()[:1] in {*"=+@＝＋－＠"}]
            assert all(_is_number(cell) for cell in row if cell.lstrip().startswith("-"))


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def test_a_level_that_is_a_number_stays_one_in_csv() -> None:
    assert [escape_for_csv(value) for value in ("-5", "+0.5e3", "-O2", -5.0, "a=b")] == [
        "-5",
        "+0.5e3",
        "'-O2",
        -5.0,
        "a=b",
    ]


def test_parquet_holds_the_same_rows() -> None:
    import polars

    run = memory_sweep(blocks=3, failing={("tcg memory=2G", 1)})
    frame = polars.read_parquet(io.BytesIO(export_run(run, Format.PARQUET)))
    assert frame.columns == list_column_names(run)
    assert frame.rows(named=True) == make_trial_rows(run)
    assert frame["value"].dtype == polars.Float64
    empty = polars.read_parquet(io.BytesIO(export_run(memory_sweep(blocks=0), Format.PARQUET)))
    assert empty.schema == frame.schema


def test_markdown() -> None:
    text = export_run(host_uml_tcg(failing={("uml", 3)}), Format.MARKDOWN).decode()
    assert text == (GOLDEN / "report.md").read_text()


def test_markdown_cannot_be_broken_out_of() -> None:
    text = export_run(renamed(host_uml_tcg(blocks=7), "a `b` | c\n\n# d <script>"), Format.MARKDOWN).decode()
    assert text.splitlines()[0] == "### ``a `b` | c # d <script>``"
    bars = [len(re.findall(r"(?<!\\)\|", line)) for line in text.splitlines() if line.startswith("|")]
    assert set(bars) == {6, 8, 3, 4, 9}  # result, metrics and trials, environment, how runs differ, the runs


@pytest.mark.parametrize(
    "command",
    ["ls | wc -l; echo `id`", "`a`", "a ``b`` c", "", " ", " a ", "x|y", "`", "echo '```'", "a\\|b"],
)
def test_a_command_in_markdown_is_that_command(command: str) -> None:
    """By the rules of CommonMark and of GitHub's tables for what stands in a span of code."""
    span = format_code_span(command)
    in_table = format_code_span(command, in_table=True)
    assert not re.search(r"(?<!\\)\|", in_table)
    for text in (span, in_table.replace("\\|", "|")):
        if not command:
            assert text == ""
            continue
        fence = known(re.match("`+", text)).group()
        assert text.endswith(fence)
        inner = text[len(fence) : -len(fence)]
        assert not re.search(f"(?<!`){fence}(?!`)", inner)
        if inner[0] == inner[-1] == " " and inner.strip(" "):
            inner = inner[1:-1]
        assert inner == command


def test_a_page_of_a_metric_that_is_zero_everywhere_is_written() -> None:
    run = host_uml_tcg(blocks=4)
    ids = {trial.cell_id for trial in run.trials}
    run = with_metrics(run, {cell_id: {Metric("identical", ""): 0.0} for cell_id in ids})
    assert b"</html>" in export_run(run, Format.HTML)


def test_a_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    file.write_text("old")
    file.chmod(0o640)
    write_file(file, b"new")
    assert file.read_bytes() == b"new"
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    assert [entry.name for entry in tmp_path.iterdir()] == ["out.json"]
    link = tmp_path / "link"
    link.symlink_to(file)
    write_file(link, b"newer")
    assert link.is_symlink()
    assert file.read_bytes() == b"newer"


def test_a_pipe_is_written_into(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_file(pipe, b"data")
    assert os.read(reader, 100) == b"data"
    os.close(reader)


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    for bad in (tmp_path / "none" / "out.json", Path("/dev/full"), tmp_path):
        with pytest.raises(GuestmarkError, match="cannot be written") as raised:
            write_file(bad, b"x" * 100)
        assert "in the ledger" in raised.value.hint
    assert list(tmp_path.iterdir()) == []
