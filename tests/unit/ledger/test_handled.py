"""Runs as things to handle: named, found, removed and brought back, bundled, and taken over by another ledger."""

import base64
import json
import re
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from guestmark.core.context import Context, FleetOrder
from guestmark.core.errors import LedgerError, UsageError
from guestmark.core.model import RunState
from guestmark.ledger import open_ledger
from guestmark.ledger.bundle import PackedRun, pack_runs, strip_private_data, unpack_runs
from guestmark.ledger.model import StoredRun
from guestmark.ledger.run_annotations import NO_ANNOTATIONS, Annotations, remove_annotations
from guestmark.ledger.run_lookup import parse_filter
from guestmark.ledger.run_manager import RunManager
from guestmark.ledger.store import Ledger
from guestmark.report.formats import make_bundle_page
from tests.framework.preloaded import call as guestmark
from tests.framework.runs import host_uml_tcg


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with open_ledger(tmp_path / "ledger.sqlite") as opened:
        yield opened


def stored(ledger: Ledger, blocks: int = 2) -> str:
    run = host_uml_tcg(blocks=blocks, failing={("uml", 1)})
    run_id = ledger.create_run(run.plan, {"machine": "0123", "processor": {"count": 2}}, run.seed)
    for trial in run.trials:
        ledger.store_trial(run_id, trial)
    ledger.record_left_out(run_id, run.unusable[0])
    ledger.set_run_state(run_id, RunState.COMPLETE)
    return run_id


def test_a_run_is_found_by_the_name_it_was_given(ledger: Ledger) -> None:
    first, second = stored(ledger), stored(ledger)
    ledger.annotate_run(first, Annotations("before", ("quiet",), {"commit": "1a2b"}, ("release",)))
    ledger.annotate_run("before", Annotations(notes=("indeed",), labels={"commit": "3c4d"}))
    assert ledger.resolve_run("before") == first
    assert ledger.read_annotations(first) == Annotations(
        "before", ("quiet", "indeed"), {"commit": "3c4d"}, ("release",)
    )
    with pytest.raises(LedgerError, match="is already named 'before'"):
        ledger.annotate_run(second, Annotations("before"))
    assert ledger.read_annotations(second) == NO_ANNOTATIONS
    with ledger.write_transaction("taking away") as connection:
        remove_annotations(connection, first, labels=["commit", "nothing"], tags=["release"])
    assert ledger.read_annotations(first) == Annotations("before", ("quiet", "indeed"))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("name=before", "first"),
        ("commit=1a2b", "first"),
        ("label.commit!=1a2b", "second"),
        ("tag=release and state=complete", "first"),
        ("workload~SYSBENCH, platform=tcg", "both"),
        ("platform!=kvm", "none"),
        ("since=1h", "both"),
        ("before=1h", "none"),
        ("since=2020-01-01 and before=2099-01-01", "both"),
        ("note~quiet", "first"),
    ],
)
def test_filters(ledger: Ledger, text: str, found: str) -> None:
    first, second = stored(ledger), stored(ledger)
    ledger.annotate_run(first, Annotations("before", ("a quiet day",), {"commit": "1a2b"}, ("release",)))
    wanted = parse_filter(text)
    ids = {"first": [first], "second": [second], "both": [first, second], "none": []}
    assert [run.id for run in ledger.list_runs() if wanted(run)] == ids[found]


@pytest.mark.parametrize("text", ["", "state", "state>complete", "since=yesterday", "since~2d", "a=1 and"])
def test_filters_that_mean_nothing(text: str) -> None:
    with pytest.raises(UsageError, match="--filter"):
        parse_filter(text)


def test_a_removed_run_is_out_of_sight_until_it_is_brought_back(ledger: Ledger) -> None:
    first, second = stored(ledger), stored(ledger)
    shelf = RunManager(ledger)
    assert shelf.remove_run("last") == second
    assert [run.id for run in ledger.list_runs()] == [first]
    assert [run.id for run in ledger.list_runs(removed=True)] == [second]
    assert ledger.resolve_run("last") == first
    with pytest.raises(LedgerError, match="was removed") as caught:
        ledger.load_run(second)
    assert f"rm --undo {second}" in caught.value.hint
    assert shelf.restore_run(second) == second
    assert [run.id for run in ledger.list_runs()] == [first, second]
    with pytest.raises(LedgerError, match="no removed run") as caught:
        shelf.restore_run(second)
    assert "no run can be brought back" in caught.value.hint


def test_a_removed_run_is_known_by_its_name(ledger: Ledger) -> None:
    first, second = stored(ledger), stored(ledger)
    ledger.annotate_run(first, Annotations(name="monday"))
    shelf = RunManager(ledger)
    shelf.remove_run("monday")
    with pytest.raises(LedgerError, match="run monday was removed"):
        ledger.resolve_run("monday")
    with pytest.raises(LedgerError, match=f"no removed run '{second}'") as caught:
        shelf.restore_run(second)
    assert "runs --removed" in caught.value.hint
    assert shelf.restore_run("monday") == first


def size_of(ledger: Ledger) -> int:
    return sum(file.stat().st_size for file in Path(ledger.where).parent.glob("ledger.sqlite*"))


def test_only_a_vacuum_deletes(ledger: Ledger) -> None:
    kept, gone = stored(ledger), stored(ledger, blocks=30)
    before = ledger.load_run(kept)
    shelf = RunManager(ledger)
    size = size_of(ledger)
    shelf.remove_run(gone)
    assert shelf.delete_removed_runs() == [gone]
    assert shelf.delete_removed_runs() == []
    assert ledger.load_run(kept) == before
    assert ledger.check_all().problems == ()
    assert size_of(ledger) < size
    with pytest.raises(LedgerError, match="no removed run"):
        shelf.restore_run(gone)


def test_a_run_that_is_being_executed_is_not_removed(ledger: Ledger) -> None:
    run_id = stored(ledger)
    with ledger.claim_run(run_id), pytest.raises(LedgerError, match="is being executed"):
        RunManager(ledger).remove_run(run_id)


def bundle(run: StoredRun, said: Annotations = NO_ANNOTATIONS) -> bytes:
    return pack_runs([PackedRun(run, said)], make_bundle_page([run]))


def test_a_bundle_holds_all_that_another_ledger_needs(ledger: Ledger, tmp_path: Path) -> None:
    run_id = stored(ledger, blocks=7)
    ledger.annotate_run(run_id, Annotations("before", ("quiet",), {"commit": "1a2b"}, ("release",)))
    whole = ledger.load_run(run_id)
    order = FleetOrder("f", "plan", "here", 1.0, {}, [{"ssh": "me@lab1", "environment": {"TOKEN": "secret"}}])
    whole = replace(whole, plan=replace(whole.plan, context=replace(whole.plan.context, fleet=order)))
    sent = strip_private_data(whole, consoles=True)
    assert sent.plan.context.fleet is None
    data = bundle(sent, ledger.read_annotations(run_id))
    assert data.startswith(b"<!doctype html>")
    assert data.count(b"<svg viewBox") == 3
    (packed,) = unpack_runs(data, "run.gmk")
    with open_ledger(tmp_path / "other.sqlite") as other:
        shelf = RunManager(other)
        assert shelf.import_run(packed.run, packed.said) == run_id
        assert shelf.import_run(packed.run, packed.said) is None
        assert other.check_all().problems == ()
        taken = other.load_run("before")
        assert replace(taken, origin=None) == sent
        assert other.read_annotations(run_id) == ledger.read_annotations(run_id)
        # Another run that happens to have this id is another run.
        again = shelf.import_run(replace(sent, seed=7), packed.said)
        assert again is not None
        assert again != run_id
        assert other.read_annotations(again).name == ""  # the name is taken


def test_a_bundle_names_nobody(ledger: Ledger) -> None:
    run = host_uml_tcg(blocks=2, failing={("uml", 1)})
    context = Context(
        env={
            "HOME": "/home/alice",
            "USER": "alice",
            "LANG": "C",
            "TOKEN": "hunter2",
            "OMP_NUM_THREADS": "2",
        },
        cwd="/home/alice/work",
    )
    trials = tuple(
        replace(trial, reason="lab7: /home/alice/x died", console="lab7 login") for trial in run.trials
    )
    run = replace(run, plan=replace(run.plan, context=context), trials=trials)
    data = bundle(strip_private_data(run, host_name="lab7"))
    head = json.loads(re.findall(rb'bundle\+json" id="guestmark-bundle">(\{.*?\})</script>', data)[0])
    content = zlib.decompress(base64.b64decode(head["data"])).decode()
    for text in (content, data.decode()):
        assert not re.search(r"alice|hunter2|lab7|login", text)
    (packed,) = unpack_runs(data, "run.gmk")
    assert packed.run.plan.context.env == {"LANG": "C", "OMP_NUM_THREADS": "2"}
    assert packed.run.plan.context.env_names == ("HOME", "TOKEN", "USER")
    assert [cell.id for cell in packed.run.plan.cells] == [cell.id for cell in run.plan.cells]
    named = unpack_runs(bundle(strip_private_data(run, consoles=True)), "run.gmk")[0].run.trials[0]
    assert (named.reason, named.console) == ("lab7: /home/alice/x died", "lab7 login")


def test_a_host_named_like_a_platform_spoils_nothing() -> None:
    run = host_uml_tcg(blocks=1)
    assert [cell.id for cell in strip_private_data(run, host_name="host").plan.cells] == [
        cell.id for cell in run.plan.cells
    ]


def damaged(data: bytes, how: str) -> bytes:
    head = re.findall(rb'guestmark-bundle">(\{.*?\})</script>', data)[0]
    document = json.loads(head)
    if how == "bomb":
        content = zlib.compress(b"0" * 50_000_000, 9)
        document |= {"data": base64.b64encode(content).decode(), "size": 10}
    elif how == "bit":
        middle = len(document["data"]) // 2
        flipped = "A" if document["data"][middle] != "A" else "B"
        document["data"] = document["data"][:middle] + flipped + document["data"][middle + 1 :]
    elif how == "version":
        document["schema"] = "guestmark-bundle/9"
    elif how == "content":
        import hashlib

        content = b'[{"id": "../../etc"}]'
        document |= {
            "data": base64.b64encode(zlib.compress(content)).decode(),
            "size": len(content),
            "sha256": hashlib.sha256(content).hexdigest(),
        }
    elif how == "shape":
        document = {"schema": "guestmark-bundle/1"}
    return data.replace(head, json.dumps(document).encode())


@pytest.mark.parametrize("how", ["bomb", "bit", "version", "content", "shape"])
def test_a_bundle_that_is_not_as_it_was_packed_is_refused(how: str) -> None:
    data = bundle(host_uml_tcg(blocks=1))
    with pytest.raises(
        LedgerError, match=r"run\.gmk (is damaged|cannot be imported: the bundle has another version)"
    ):
        unpack_runs(damaged(data, how), "run.gmk")


def test_what_is_not_a_bundle_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="is not a bundle"):
        unpack_runs(b"<html></html>", "page.html")


def test_from_one_ledger_to_another_on_the_command_line(tmp_path: Path) -> None:
    mine, theirs, merged = (str(tmp_path / f"{name}.sqlite") for name in ("mine", "theirs", "merged"))
    with open_ledger(mine) as opened:
        run_id = stored(opened, blocks=7)
    with open_ledger(theirs) as opened:
        stored(opened)
        stored(opened)
    file = tmp_path / "run.gmk"
    assert guestmark("edit", "last", "--name", "before", GUESTMARK_LEDGER=mine).returncode == 0
    assert guestmark("export", "before", "--bundle", str(file), GUESTMARK_LEDGER=mine).returncode == 0
    done = guestmark("import", str(file), theirs, "--tag", "lab", GUESTMARK_LEDGER=merged)
    assert done.returncode == 0, done.stderr
    assert "run.gmk: 1 new run" in done.stderr
    assert "theirs.sqlite: 2 new runs" in done.stderr
    again = guestmark("import", theirs, GUESTMARK_LEDGER=merged)
    assert "0 new runs, 2 there already" in again.stderr
    listed = guestmark("runs", "--json", "--filter", "name=before", GUESTMARK_LEDGER=merged)
    (run,) = json.loads(listed.stdout)
    assert (run["id"], run["tags"], run["given_name"]) == (run_id, ["lab"], "before")
    assert "before" in guestmark("runs", GUESTMARK_LEDGER=merged).stdout
