"""Bundles and ledgers of strangers: what cannot have been measured is refused; what is taken is not run unasked."""

import base64
import hashlib
import json
import math
import zlib
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from guestmark.cli.do.import_ import _check_can_be_shown
from guestmark.core.errors import LedgerError
from guestmark.engine.environment import record_environment
from guestmark.ledger import bundle, codec, open_ledger, run_history
from guestmark.ledger.bundle import PackedRun
from guestmark.ledger.model import RunOrigin
from guestmark.ledger.run_annotations import Annotations
from guestmark.ledger.run_manager import RunManager
from guestmark.ledger.store import Ledger
from guestmark.ledger.validation import ReadBudget
from guestmark.report import run_comparison
from guestmark.report.export_format import Format
from guestmark.report.formats import export_run
from tests.framework.runs import host_uml_tcg

PLAIN = json.loads(
    json.dumps(
        bundle._make_plain(
            PackedRun(
                host_uml_tcg(blocks=3, failing={("uml", 1)}),
                Annotations("theirs", ("a note",), {"commit": "1a"}, ("t",)),
            )
        )
    )
)


def forged(runs: Any, *, content: bytes | None = None, **head: Any) -> bytes:
    """A bundle whose digest and size fit whatever is in it."""
    content = json.dumps(runs).encode() if content is None else content
    said = {
        "schema": bundle.SCHEMA,
        "sha256": hashlib.sha256(content).hexdigest(),
        "size": len(content),
        "data": base64.b64encode(zlib.compress(content)).decode(),
    } | head
    return f"<html>{bundle._OPEN}{json.dumps(said)}</script></html>".encode()


def body(run: dict[str, Any], number: int = 0) -> dict[str, Any]:
    """The body of a trial, to be put back by `sealed`."""
    found = run["trials"][number]["body"]
    return found if isinstance(found, dict) else json.loads(found)


def changed(run: dict[str, Any], **fields: Any) -> None:
    run["trials"][0]["body"] = json.dumps(body(run) | fields)


def packed_bomb(size: int) -> str:
    return base64.b64encode(zlib.compress(b"\0" * size, 9)).decode()


def _cell(run: dict[str, Any], **fields: Any) -> None:
    run["plan"]["cells"][0] |= fields


def _policy(run: dict[str, Any], **fields: Any) -> None:
    run["plan"]["policy"] |= fields


def _measured(run: dict[str, Any], value: float) -> None:
    measurements = body(run)["measurements"]
    measurements[0]["value"] = value
    changed(run, measurements=measurements)


HOSTILE: dict[str, Callable[[dict[str, Any]], object]] = {
    "begun in the year 1e300": lambda run: run.update(created_at=1e300),
    "begun before 1970": lambda run: run.update(created_at=-1.0),
    "begun next month": lambda run: run.update(created_at=4e9),
    "begun at no time": lambda run: run.update(created_at=math.nan),
    "begun for ever": lambda run: run.update(created_at=math.inf),
    "begun at a word": lambda run: run.update(created_at="yesterday"),
    "a path for an id": lambda run: run.update(id="../../x"),
    "a newline in the id": lambda run: run.update(id="20261121-213000-k3f\n"),
    "an id like an option": lambda run: run.update(id="--trust"),
    "an endless seed": lambda run: run.update(seed="9" * 4000),
    "a state that is none": lambda run: run.update(state="excellent"),
    "a cell fifty times": lambda run: run["plan"].update(cells=run["plan"]["cells"][:1] * 50),
    "a copy of no cell": lambda run: _cell(run, null_of="nothing"),
    "a copy of itself": lambda run: _cell(run, null_of="host"),
    "a cell without a name": lambda run: _cell(run, id=""),
    "half a character": lambda run: run["plan"].update(name="\ud800"),
    "a NUL": lambda run: run["plan"].update(name="a\0b"),
    "a trial of no cell": lambda run: changed(run, cell_id="nothing"),
    "block 10^12": lambda run: changed(run, block=10**12),
    "block -1": lambda run: changed(run, block=-1),
    "place 10^12": lambda run: changed(run, order=10**12),
    "a trial twice": lambda run: run["trials"].append(run["trials"][0]),
    "a trial that never ends": lambda run: changed(run, duration_s=1e400),
    "a trial in the year 1e300": lambda run: changed(run, started_at=1e300),
    "a value that is no number": lambda run: _measured(run, math.nan),
    "an infinite value": lambda run: _measured(run, math.inf),
    "a value 1e400": lambda run: run["trials"][0].update(
        body=run["trials"][0]["body"].replace('"value":', '"value":1e400,"was":', 1)
    ),
    "a metric twice": lambda run: changed(run, measurements=body(run)["measurements"][:1] * 2),
    "metrics twice": lambda run: run["plan"].update(metrics=run["plan"]["metrics"][:1] * 2),
    "10^12 blocks": lambda run: _policy(run, blocks=10**12),
    "10^30 blocks": lambda run: _policy(run, blocks=10**30),
    "no iteration": lambda run: _policy(run, iterations=0),
    "a limit that never ends": lambda run: _policy(run, time_limit_s=1e300),
    "no precision": lambda run: _policy(run, precision=math.nan),
    "10^12 processors": lambda run: _cell(run, processors=10**12),
    "a name that means another run": lambda run: run["remarks"].update(name="last"),
    "a name to be obeyed": lambda run: run["remarks"].update(name="\x1b]0;x\x07"),
    "a tag to be obeyed": lambda run: run["remarks"].update(tags=["\x1b[2J"]),
    "a label with a path": lambda run: run["remarks"].update(labels={"../../x/" * 20: "1"}),
    "10^5 labels": lambda run: run["remarks"].update(labels={f"l{n}": "1" for n in range(100_000)}),
    "10^5 environments": lambda run: run.update(environments=[{}] * 100_000),
    "10^5 left out": lambda run: run.update(unusable=[{"platform": "kvm", "reason": "x", "hint": ""}] * 100_000),
    "environments that are numbers": lambda run: run.update(environments=[1, 2]),
    "trials that are numbers": lambda run: run.update(trials=[1, 2]),
    "a console that never ends": lambda run: run["trials"][0].update(console=packed_bomb(1 << 25)),
    "many consoles": lambda run: [trial.update(console=packed_bomb(3 << 20)) for trial in run["trials"]],
    "a body as deep as a well": lambda run: run["trials"][0].update(body="[" * 200_000),
    "notes of a stranger": lambda run: run["remarks"].update(notes=["\ud800"]),
}  # fmt: skip


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with open_ledger(tmp_path / "ledger.sqlite") as opened:
        yield opened


@pytest.mark.timeout(120)
@pytest.mark.parametrize("how", HOSTILE)
def test_a_run_that_cannot_be_is_refused(how: str) -> None:
    run = deepcopy(PLAIN)
    HOSTILE[how](run)
    with pytest.raises(LedgerError, match=r"run\.gmk (cannot be imported|is damaged): ") as caught:
        bundle.unpack_runs(forged([run]), "run.gmk", ReadBudget(size=16 << 20, values=500_000))
    assert caught.value.hint
    assert len(caught.value.message) < 500


def test_the_unchanged_run_is_taken() -> None:
    (packed,) = bundle.unpack_runs(forged([deepcopy(PLAIN)]), "run.gmk")
    assert json.loads(json.dumps(bundle._make_plain(packed))) == PLAIN


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "data",
    [
        lambda: forged([], content=b"\0" * (1 << 26)),
        lambda: forged([], content=b"\0" * (1 << 26), size=10),
        lambda: forged([], content=b"[" * 1_000_000),
        lambda: forged([], content=b"[" + b"{}," * 1_000_000 + b"{}]"),
        lambda: forged([], content=b'[{"id":' + b"9" * 1_000_000 + b"}]"),
        lambda: forged([], content=b'[{"id":1,"id":2}]'),
        lambda: forged([], data="!"),
        lambda: forged([], data=""),
        lambda: forged([], data=base64.b64encode(zlib.compress(b"[]")[:-3]).decode()),
        lambda: forged([], size=10**30),
        lambda: forged([], size="1e3"),
        lambda: forged([], schema="guestmark-bundle/" + "9" * 10_000),
        lambda: bundle._OPEN.encode() + b"{" * 3_000_000,
        lambda: bundle._OPEN.encode() * 1_000_000,
        lambda: bundle._OPEN.encode() + b"[" * 1_000_000 + b"</script>",
        lambda: bundle._OPEN.encode() + b'{"a":' * 100_000 + b"</script>",
    ],
    ids=range(16),
)
def test_layers_of_a_bundle_have_one_budget(data: Callable[[], bytes]) -> None:
    with pytest.raises(LedgerError) as caught:
        bundle.unpack_runs(data(), "run.gmk", ReadBudget(size=16 << 20, values=500_000))
    assert len(caught.value.message) < 500


def test_a_budget_is_used_up_by_all_layers_together() -> None:
    budget = ReadBudget(size=3_000)
    assert budget.inflate(zlib.compress(b"x" * 2000)) == b"x" * 2000
    budget.charge_encoded("[1, 2]")
    with pytest.raises(LedgerError, match="too large"):
        codec.unpack_console(codec.pack_console("y" * 2000), budget)
    with pytest.raises(LedgerError, match="more than 0 s"):
        ReadBudget(seconds=0).charge_amount(1)


# --- whatever is in a bundle --------------------------------------------------------------------------------

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.sampled_from(["", "host", "../../x", "=1+1", "\x1b]0;x\x07", "\ud800", "\0", "{side}", "uml"])
    | st.sampled_from(["a" * 300, -0.0, 1e308])
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=4,
)  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where something is in nested lists and tables."""
    yield path
    if isinstance(value, dict):
        for key in value:
            yield from places(value[key], (*path, key))
    elif isinstance(value, list):
        for number in range(len(value)):
            yield from places(value[number], (*path, number))


def opened_up(run: dict[str, Any]) -> dict[str, Any]:
    """The run with its trials' bodies as tables, so that what is in them can be changed."""
    found = deepcopy(run)
    for trial in found["trials"]:
        trial["body"] = json.loads(trial["body"])
    return found


RICH = opened_up(PLAIN)
RICH["environments"] = [json.loads(json.dumps(record_environment(["guestmark"], programs=())))]
RICH["plan"]["context"] |= {
    "notes": ["n"],
    "around": {"run": {"setup": "true"}},
    "uid": 0,
    "scale": 2.0,
    "gates": [],
}
PLACES = list(places(RICH))


@example([(("trials", 10, "body", "attestation"), None)])
@example([(("trials", 0, "body", "measurements", 4, "value"), -1.6421143998800675e154)])
@example([(("environments", 0, "packages"), "host")])
@example([(("plan", "cells", 4, "platform"), "")])
@example([])
@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.tuples(st.sampled_from(PLACES), VALUES | st.just("gone")), min_size=1, max_size=3))
def test_what_is_taken_can_be_shown(changes: list[tuple[tuple[Any, ...], Any]]) -> None:
    """Any value anywhere: the bundle is refused in one line, or the run is stored and every view of it works."""
    run: Any = {"run": deepcopy(RICH)}
    for path, value in changes:
        at: Any = run
        *steps, last = ("run", *path)
        try:
            for step in steps:
                at = at[step]
            if value == "gone":
                del at[last]
            else:
                at[last] = value
        except (KeyError, IndexError, TypeError):  # an earlier change took this place away
            continue
    made = run.get("run")
    if isinstance(made, dict) and isinstance(made.get("trials"), list):
        for trial in made["trials"]:
            if isinstance(trial, dict):
                trial["body"] = json.dumps(trial.get("body"))
    with open_ledger(_fresh()) as ledger:
        try:
            (packed,) = bundle.unpack_runs(forged([made]), "run.gmk")
            _check_can_be_shown(packed)
            run_id = RunManager(ledger).import_run(
                packed.run, replace(packed.said, origin=RunOrigin("run.gmk"))
            )
        except LedgerError:
            assert changes, "the run as it is can be taken"
            assert not ledger.list_runs()
            return
        assert run_id is not None
        assert ledger.check_all().problems == ()
        stored = ledger.load_run(run_id)
        analysis = run_history.analyse_with_history(ledger, stored)
        for form in Format:
            assert export_run(stored, form, analysis)
        (overview,) = ledger.list_runs()
        assert overview.imported == "run.gmk"
        with_itself = run_comparison.compare_runs(ledger, stored, stored)
        assert run_comparison.make_document([with_itself])


_FOLDER: list[Path] = []


def _fresh() -> Path:
    for file in _FOLDER[0].glob("each*"):
        file.unlink()
    return _FOLDER[0] / "each.sqlite"


@pytest.fixture(autouse=True, scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> None:
    _FOLDER[:] = [tmp_path_factory.mktemp("intake")]
