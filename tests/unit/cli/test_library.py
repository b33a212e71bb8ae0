"""guestmark as a library: measured for real on the host, and the notebook of the documentation executed."""

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import guestmark
from guestmark.core.errors import UsageError
from guestmark.library import Result
from tests.framework import CHECKOUT, PACKAGES
from tests.framework.processes import others


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Result:
    ledger = tmp_path_factory.mktemp("library") / "ledger.sqlite"
    return guestmark.exec(
        ["sh", "-c", "sleep $PAUSE; echo {word}"], parameters={"word": ["a", "b"]}, env={"PAUSE": "0.001"},
        blocks=6, warmup=0, iterations=1, ledger=ledger, labels={"commit": "1a2b"}, name="first",
    )  # fmt: skip


def test_a_result_has_cells_ratios_and_every_trial(measured: Result) -> None:
    assert measured.state == "complete"
    assert measured.cells == ("host word=a", "host word=b")
    assert measured.metrics[0] == "wall_s"
    (ratio,) = measured.ratios
    assert (ratio.cell, ratio.blocks) == ("host word=b", 6)
    assert ratio.low is not None
    assert ratio.high is not None
    assert ratio.low <= ratio.value <= ratio.high
    assert len(measured.values("host word=a")) == 6
    frame = measured.frame()
    assert frame.filter(frame["metric"] == "wall_s").height == 18  # with the copy of the baseline
    assert set(frame["factor_word"].unique()) == {"a", "b"}
    assert measured.document()["run"]["id"] == measured.id
    assert measured.gates("> x100")[0].outcome.value in {
        "kept",
        "undecided",
    }  # what else runs here may forbid a verdict
    assert measured.id in repr(measured)


def test_a_notebook_shows_the_report_in_a_frame(measured: Result) -> None:
    frames: list[dict[str, str | None]] = []

    class Frames(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            frames.append({"tag": tag, **dict(attrs)})

    Frames().feed(measured._repr_html_())
    (frame,) = frames
    assert frame["tag"] == "iframe"
    assert frame["srcdoc"] == measured.html()


def test_it_is_in_the_ledger_as_any_run(measured: Result) -> None:
    again = guestmark.load("first", ledger=measured._ledger)
    assert again.stored == measured.stored
    with pytest.raises(UsageError, match="unknown cell 'tcg'"):
        again.ratio("tcg")
    with pytest.raises(UsageError, match="has no ratio"):
        again.ratio("host word=a")
    with pytest.raises(UsageError, match="not a kind of frame"):
        again.frame("arrow")  # type: ignore[call-overload]


def test_mistakes_leave_no_run(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.sqlite"
    with pytest.raises(UsageError, match="not found"):
        guestmark.exec("no-such-program-anywhere", ledger=ledger)
    with pytest.raises(UsageError, match="unknown platform"):
        guestmark.exec("true", on=["kvn"], ledger=ledger)
    assert not ledger.exists()


def test_the_package_is_typed_and_lists_what_it_has() -> None:
    assert (PACKAGES / "guestmark/py.typed").exists()
    assert {"exec", "run", "load"} <= set(guestmark.__all__)
    with pytest.raises(AttributeError, match="nothing"):
        _ = guestmark.nothing


def test_the_notebook_of_the_documentation_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GUESTMARK_LEDGER", str(tmp_path / "ledger.sqlite"))
    notebook = json.loads((CHECKOUT / "docs/guide/first-look.ipynb").read_text())
    names: dict[str, Any] = {}
    codes = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert len(codes) >= 4
    for code in codes:
        exec(compile(code, "first-look.ipynb", "exec"), names)
    assert names["result"].cells == ("host seconds=0.002", "host seconds=0.004")
    assert not [words for _, words in others() if words[-1:] == [b"0.004"]]


def test_a_run_keeps_its_budget_however_old_the_process_is(tmp_path: Path) -> None:
    plan = tmp_path / "short.toml"
    plan.write_text(
        'schema = "guestmark-plan/2"\nname = "short"\ntitle = "How long?"\nplatforms = ["host"]\n'
        '[workloads.w]\nkind = "exec"\nparams.command = ["sleep", "{seconds}"]\nfactors.seconds = [0.01, 0.02]\n'
        '[cost]\nhost = "1s"\n[repetition]\nfor = "6s"\n'
    )
    ledger = tmp_path / "ledger.sqlite"
    planned = guestmark.run(plan, ledger=ledger)
    took_s = planned.stored.plan.context.elapsed_s
    assert took_s is not None
    assert took_s < 9
    with pytest.raises(UsageError, match="--for cannot be combined"):
        guestmark.run(plan, budget_s=5, blocks=2, ledger=ledger)
    assert guestmark.run(plan, blocks=2, ledger=ledger).analysis.blocks == 2
