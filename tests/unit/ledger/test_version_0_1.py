"""Runs of version 0.1 are read, shown, exported and resumed, with all that was found out about their trials."""

import io
import json
import re
import sqlite3
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from guestmark.core.findings import TARGET, Facts, Flushes, Mount, flatten_fact
from guestmark.core.machine_facts import NestedMachine
from guestmark.core.model import RunState
from guestmark.ledger import open_ledger
from guestmark.ledger.model import StoredRun
from guestmark.report.document import make_result_document
from guestmark.report.export_format import Format
from guestmark.report.formats import export_run
from guestmark.report.sections.durability import MEANING
from guestmark.report.shared_facts import restore_shared
from guestmark.stats.analysis import Analysis, analyse_run
from guestmark.workloads.boot import Boot
from guestmark.workloads.fio import Fio
from guestmark.workloads.guestfs.guestfish import Guestfs
from guestmark.workloads.netboot import Netboot
from guestmark.workloads.oltp import SERVER, Oltp
from tests.framework import recorded
from tests.framework.command_line import CommandLine
from tests.framework.made_facts import every_kind
from tests.framework.runs import print_report

COMMAND, CALLS, FILESYSTEMS = "20261122-215509-9ty", "20261122-220649-srp", "20261122-220722-vtf"
INITCALLS, STARTS, PEERS = "20261122-215946-1h9", "20261122-220028-5rn", "20261122-215543-e67"
NETBOOT, NETBOOT_INSIDE = "20261122-220230-qf6", "20261122-221813-1vp"
DATABASES, JOB, NESTED = "20261122-220345-rz5", "20261122-221704-jb1", "20261122-220850-mjn"
INTERRUPTED = "20261122-220807-6xj"


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return recorded.ledger(tmp_path_factory.mktemp("ledger"))


@pytest.fixture(scope="module")
def runs(ledger: Path) -> Mapping[str, StoredRun]:
    with open_ledger(ledger, writable=False) as opened:
        return {run.id: opened.load_run(run.id) for run in opened.list_runs()}


def attestations(ledger: Path, run: str) -> Iterator[tuple[str, int, Any]]:
    """As 0.1 stored them, by cell and block."""
    with sqlite3.connect(ledger) as connection:
        rows = connection.execute("select cell_id, block, body from trials where run_id = ?", (run,))
        for cell, block, body in rows:
            yield cell, block, json.loads(body)["attestation"]


def shown(run: StoredRun, width: int = 120) -> str:
    out = io.StringIO()
    print_report(run, Console(file=out, width=width), environment=True)
    return out.getvalue()


def facts_of(run: StoredRun, cell: str) -> Facts:
    return next(trial.facts for trial in run.trials if trial.cell_id == cell)


def test_every_recorded_run_is_here(runs: Mapping[str, StoredRun]) -> None:
    assert list(runs) == list(recorded.KEYS)
    assert sum(len(run.trials) for run in runs.values()) > 60


@pytest.fixture(scope="module")
def analyses(runs: Mapping[str, StoredRun]) -> Mapping[str, Analysis]:
    return {name: analyse_run(run.plan, run.trials, run.unusable) for name, run in runs.items()}


@pytest.mark.parametrize("run", recorded.KEYS)
@pytest.mark.parametrize("form", list(Format))
def test_every_run_can_be_exported(
    runs: Mapping[str, StoredRun], analyses: Mapping[str, Analysis], run: str, form: Format
) -> None:
    assert export_run(runs[run], form, analyses[run])


@pytest.mark.parametrize("run", recorded.KEYS)
def test_documents_keep_every_key_and_value(ledger: Path, runs: Mapping[str, StoredRun], run: str) -> None:
    document = restore_shared(make_result_document(runs[run]))
    found = {
        (cell["id"], trial["block"]): trial["attestation"]
        for cell in document["cells"]
        for trial in cell["trials"]
    }
    for cell, block, attestation in attestations(ledger, run):
        assert found[cell, block] == attestation
    for cell, keys in recorded.KEYS[run].items():
        trials = [attestation for (name, _), attestation in found.items() if name == cell]
        assert set(keys) <= {key for attestation in trials for key in recorded.keys(attestation)}


@pytest.mark.parametrize("run", recorded.KEYS)
def test_every_fact_belongs_to_a_type_and_comes_out_the_same(runs: Mapping[str, StoredRun], run: str) -> None:
    for trial in runs[run].trials:
        read: dict[str, Any] = {}
        for kind in every_kind():
            for name in ("", SERVER, TARGET):
                found = trial.facts.find_fact(kind, name)
                if found is not None:
                    read |= {
                        f"{name}_{key}" if name else key: value for key, value in flatten_fact(found).items()
                    }
        kept = trial.facts.kept
        assert read.keys() == kept.keys()
        assert like(kept, json.loads(json.dumps(read))) == kept


def like(kept: Any, read: Any) -> Any:
    """What was read, without the fields inside of a fact that only newer versions have."""
    if isinstance(kept, Mapping) and isinstance(read, Mapping):
        return {key: like(kept[key], value) for key, value in read.items() if key in kept}
    if isinstance(kept, list) and isinstance(read, list) and len(kept) == len(read):
        return [like(old, new) for old, new in zip(kept, read, strict=True)]
    return read


def test_what_only_goes_wrong_elsewhere_has_its_key() -> None:
    """Caches that a user may not drop, and the log of a server that died: no recorded run has these."""
    assert flatten_fact(Mount(caches="not dropped")) == {"caches": "not dropped"}
    assert flatten_fact(Oltp(server_log="[ERROR]")) == {"server_log": "[ERROR]"}


def test_programs_and_missing_features_are_still_said(runs: Mapping[str, StoredRun]) -> None:
    document = make_result_document(runs[COMMAND])
    (program,) = document["programs"]
    assert (program["path"], program["same"], program["trials"]) == ("/bin/sh", True, 6)
    assert set(program["sha256"]) == {"host", "uml", "tcg", "this host"}
    machines = {machine["platform"]: machine["cpu_flags_missing"] for machine in document["machines"]}
    assert machines["uml"] == []
    assert len(machines["tcg"]) > 10
    text = shown(runs[COMMAND])
    assert "/bin/sh is the same on uml, tcg, host" in " ".join(text.split())
    assert f"{len(machines['tcg'])} processor features of the host" in " ".join(text.split())
    paths = {program["path"] for program in make_result_document(runs[DATABASES])["programs"]}
    assert len(paths) == 3  # sysbench and two servers
    assert "In each iteration:" in text


def test_durability_is_still_said(runs: Mapping[str, StoredRun]) -> None:
    verdicts = {
        trial.cell_id: found.reached
        for trial in runs[FILESYSTEMS].trials
        if (found := trial.facts.find_fact(Flushes)) is not None
    }
    assert verdicts == {"write uml filesystem=ext2": "no", "write tcg filesystem=ext2": "yes"}
    text = shown(runs[FILESYSTEMS])
    assert MEANING.split(":")[0] in text
    rows = [line for line in text.splitlines() if re.match("(uml|tcg) .*MB|(uml|tcg) +[0-9]", line)]
    assert any(line.startswith("uml") and " in memory " in line for line in rows), text
    assert any(line.startswith("tcg") and " in memory " in line for line in rows), text


def test_each_system_call_still_has_its_row(runs: Mapping[str, StoredRun]) -> None:
    text = shown(runs[CALLS])
    assert "stops/op" in text
    assert "flushes/op" in text
    assert {"null", "exec", "switch"} <= {line.split()[0] for line in text.splitlines() if line.split()}


def test_phases_and_initcalls_are_still_drawn(runs: Mapping[str, StoredRun]) -> None:
    assert "Slowest initcalls of tcg" in shown(runs[INITCALLS])
    calls = facts_of(runs[INITCALLS], "tcg").find_fact(Boot)
    assert calls is not None
    assert calls.initcalls.count > 100
    peer = facts_of(runs[STARTS], "guestfish tcg").find_fact(Guestfs)
    assert peer is not None
    assert peer.traced_ready_s is not None
    assert peer.appliance_s is not None
    text = shown(runs[STARTS])
    assert "Phases of start and end" in text
    for cell in ("boot tcg", "guestfish run tcg", "boot tcg/uml"):
        assert re.search(rf"{cell} .* [VFEKMRAWPX]{{5,}}$", text, re.MULTILINE), text


def test_captured_connections_are_still_drawn(runs: Mapping[str, StoredRun]) -> None:
    for run in (NETBOOT, NETBOOT_INSIDE):
        assert "Response latency of each endpoint" in shown(runs[run])
        page = export_run(runs[run], Format.HTML).decode()
        assert "Time and sequence" in page
    inside = runs[NETBOOT_INSIDE].trials[0].facts.find_fact(Netboot)
    assert inside is not None
    assert inside.inner is not None
    assert inside.inner.attestation.vmm.accelerator == "kvm"
    assert inside.inner.facts.picture is not None


def test_guests_in_guests_and_peers_are_still_known(runs: Mapping[str, StoredRun]) -> None:
    nested = runs[NESTED].trials[0].facts.find_fact(NestedMachine)
    assert nested is not None
    assert (nested.inner.guest.cpu, nested.outer.started_for_each) == ("UML", "block")
    peer = facts_of(runs[PEERS], "guestfish tcg").find_fact(Guestfs)
    assert peer is not None
    assert peer.qemu is not None
    assert any("tcg" in word for word in peer.qemu)
    job = facts_of(runs[JOB], "host").find_fact(Fio)
    assert job is not None
    assert str(job.version).startswith("3.")


def test_an_interrupted_run_goes_on(tmp_path: Path) -> None:
    recorded.ledger(tmp_path)
    line = CommandLine(tmp_path)
    result = line("resume", INTERRUPTED, "--trust", "--quiet", "--json", "-", timeout=120)
    assert result.status == 0, result.stderr
    document = result.document()
    (cell,) = document["cells"]
    assert [trial["block"] for trial in cell["trials"]] == [0, 1, 2, 3, 4, 5]
    assert {trial["status"] for trial in cell["trials"]} == {"ok"}
    old, new = cell["trials"][0]["attestation"], cell["trials"][-1]["attestation"]
    assert set(old) <= set(new)
    (program,) = document["programs"]
    assert program["trials"] == 6
    with open_ledger(line.ledger, writable=False) as opened:
        assert opened.load_run(INTERRUPTED).state is RunState.COMPLETE
    assert line("show", INTERRUPTED).status == 0
