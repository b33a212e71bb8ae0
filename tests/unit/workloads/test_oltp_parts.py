"""The parts of the workload oltp that need no server: parameters, checks before anything starts, prepared disks."""

import json
import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from guestmark.core import registry as kinds
from guestmark.core.context import Context
from guestmark.core.errors import MachineError, PlatformUnusableError, UsageError
from guestmark.core.keeper import keeper
from guestmark.core.model import Cell, Plan, Policy, WorkloadSpec
from guestmark.core.platform_spec import HOST, PlatformSpec
from guestmark.core.workload_kind import find_packages
from guestmark.disks import sparse, template
from guestmark.engine.preflight import find_impossible_cells, replace_unusable_baselines
from guestmark.plan.load import load_outline
from guestmark.plan.matrix import expand_shape
from guestmark.setting.disk import DiskSpec, Role
from guestmark.workloads.oltp.databases import KINDS, base, prepared
from guestmark.workloads.oltp.databases.base import Account
from guestmark.workloads.oltp.databases.server import pick_telling_lines
from guestmark.workloads.oltp.trial import OltpTrial


def params(**given: Any) -> Mapping[str, Any]:
    return kinds.workload_kind("oltp").check_params(given)


def cell(platform: str = "uml", factors: Mapping[str, str] | None = None, **given: Any) -> Cell:
    return Cell(platform, WorkloadSpec("oltp", params(**given)), PlatformSpec.read(platform), factors or {})


def test_what_a_killed_process_left_unfinished_is_removed_and_nothing_else(tmp_path: Path) -> None:
    for number in range(8):
        (tmp_path / f"{number:020}").mkdir()
        os.utime(tmp_path / f"{number:020}", (number, number))
    in_use = keeper().directory("part", tmp_path)
    (tmp_path / "guestmark-part-killed").mkdir()
    try:
        prepared._remove_old_data(tmp_path)
        assert {path.name for path in tmp_path.iterdir()} == {in_use.name, *(f"{n:020}" for n in range(2, 8))}
    finally:
        keeper().remove(in_use)


@pytest.mark.parametrize(("filesystem", "possible"), [("9p", False), ("hostfs", False), ("virtiofs", True)])
def test_shares_whose_files_are_roots_are_refused_to_root(
    filesystem: str, possible: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = cell("tcg", {"filesystem": filesystem})
    for user in (0, 1000):
        monkeypatch.setattr(os, "geteuid", lambda user=user: user)
        said = OltpTrial.impossible(shared)
        assert ("nobody, cannot open them" in said) is (user == 0 and not possible)


def preflight(*cells: Cell) -> Sequence[str]:
    return OltpTrial.preflight(Plan("test", cells, Policy(), (), context=Context(uid=os.getuid())), cells)


def test_parameters_are_brought_into_one_form() -> None:
    found = params(threads=4, time="5s", buffer="134217728", settings={"innodb-doublewrite": False})
    assert (found["threads"], found["time"], found["buffer"]) == ("4", "5", "128M")
    assert found["settings"] == {"innodb_doublewrite": "0"}
    assert found["disks"] == [{"role": "target", "location": "/var/tmp", "host": "directory"}]
    json.dumps(found)


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"server": "oracle"}, "mariadb"),
        ({"test": "read"}, "read_only"),
        ({"rows": 0}, "greater than or equal"),
        ({"threads": "many"}, "whole number"),
        ({"threads": 0}, "between 1 and"),
        ({"time": "0"}, "would never end"),
        ({"buffer": "1M"}, "at least"),
        ({"settings": {"datadir": "/"}}, "set by guestmark"),
        ({"settings": {"a b": "1"}}, "not a valid name"),
        ({"speed": 1}, "Extra inputs"),
    ],
)
def test_bad_parameters_are_refused(
    given: dict[str, dict[str, str]] | dict[str, int] | dict[str, str], complaint: str
) -> None:
    with pytest.raises((ValueError, UsageError), match=complaint):
        params(**given)


def test_a_plan_with_factors_spans_its_cells() -> None:
    text = (
        'schema = "guestmark-plan/1"\nname = "o"\ntitle = "o"\nplatforms = ["host", "uml", "tcg"]\n'
        '[workloads.oltp]\nfactors = { threads = ["1", "2"], cache = ["writeback", "none"] }\n'
    )
    cells = expand_shape(load_outline(text, "plan.toml").shape).cells
    shapes = {(str(cell.platform), *sorted(cell.factors.items())) for cell in cells if cell.null_of is None}
    assert ("host", ("threads", "2")) in shapes
    assert ("uml", ("threads", "1")) in shapes
    assert ("tcg", ("cache", "none"), ("threads", "2")) in shapes
    assert len(shapes) == 2 + 2 + 4


@pytest.mark.parametrize("server", sorted(KINDS))
def test_a_server_that_is_missing_is_named_with_its_package(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(base.ENVIRONMENT, "PATH", str(tmp_path))
    monkeypatch.setattr(KINDS[server], "list_program_folders", classmethod(lambda _: ()))
    (tmp_path / "sysbench").write_text("#!/bin/sh\n")
    (tmp_path / "sysbench").chmod(0o755)
    exec_cell = Cell("true", WorkloadSpec("exec", {"argv": ["true"]}), HOST)
    lacking = cell(server=server)
    plan = Plan("test", (exec_cell, lacking), Policy(), (), context=Context(uid=os.getuid()))
    (entry,) = find_impossible_cells(plan.cells)
    assert entry.cell == lacking.id
    assert "is not installed" in entry.reason
    assert server in entry.reason.partition("the package ")[2]
    with pytest.raises(PlatformUnusableError, match=r"nothing can be measured here: .* is not installed"):
        replace_unusable_baselines(Plan("test", (lacking,), Policy(), ()), [entry])


def test_sysbench_that_is_missing_is_named_with_its_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(base.ENVIRONMENT, "PATH", str(tmp_path))
    with pytest.raises(PlatformUnusableError, match="sysbench is not installed") as caught:
        preflight(cell())
    assert "package sysbench" in caught.value.hint


def test_tables_that_cannot_fit_are_said_beforehand() -> None:
    with pytest.raises(UsageError, match=r"need at least .* its disk has 256M"):
        preflight(cell(factors={"size": "256M"}, tables=8, rows=1_000_000))
    with pytest.raises(UsageError, match="GB free"):
        preflight(cell("host", tables=1000, rows=100_000_000))
    assert preflight(cell(factors={"size": "512M"})) == []


def test_other_things_that_cannot_work_are_said_beforehand(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="needs a filesystem"):
        preflight(cell(factors={"filesystem": "none"}))
    long = tmp_path / ("x" * 60)
    long.mkdir()
    with pytest.raises(UsageError, match="too long for the server's socket"):
        preflight(cell("host", factors={"location": str(long)}))
    assert preflight(cell(threads=8)) == ["uml: 8 threads share 1 processor"]
    (remark,) = preflight(cell("host", factors={"location": "/dev/shm"}))
    assert "does not flush its log" in remark


@pytest.mark.skipif(os.getuid() != 0, reason="only root runs servers as somebody else")
def test_a_directory_the_server_may_not_enter_is_said_beforehand() -> None:
    with (
        tempfile.TemporaryDirectory() as directory,
        pytest.raises(UsageError, match="the server runs as user"),
    ):
        preflight(cell("host", factors={"location": directory}))


def test_servers_are_never_root() -> None:
    assert Account.choose_account(1234, 100) == Account(1234, 100)
    assert Account.choose_account(0, 0).uid != 0


def test_reasons_quote_what_a_log_complains_of() -> None:
    log = "starting\n[Note] fine\n2026 [ERROR] InnoDB: no  memory\n[ERROR] Aborting\nbye\n"
    assert pick_telling_lines(log) == "; its log: 2026 [ERROR] InnoDB: no memory; [ERROR] Aborting"
    assert pick_telling_lines("starting\nbye\n") == "; its log: bye"
    assert pick_telling_lines("") == "; it logged nothing"


# --- disks that hold something from the start


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A directory with zeroes that were written, a hole, owners and permissions."""
    top = tmp_path / "tree"
    (top / "data" / "deep").mkdir(parents=True)
    (top / "data" / "zeroes").write_bytes(bytes(300_000) + b"end")
    with (top / "data" / "hole").open("wb") as file:
        file.seek(500_000)
        file.write(b"end")
    (top / "data" / "deep" / "random").write_bytes(os.urandom(123_457))
    (top / "data" / "empty").touch()
    (top / "data" / "link").symlink_to("deep/random")
    (top / "data").chmod(0o700)
    if os.getuid() == 0:
        os.chown(top / "data", 65534, 65534)
        os.chown(top / "data" / "zeroes", 65534, 65534)
    return top


def contents(folder: Path) -> dict[str, bytes | str]:
    return {
        str(path.relative_to(folder)): str(path.readlink()) if path.is_symlink() else path.read_bytes()
        for path in folder.rglob("*")
        if not path.is_dir() and "lost+found" not in path.parts
    }


def test_a_copy_of_a_tree_is_equal(tree: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    sparse.copy_tree(tree, copy)
    assert contents(copy) == contents(tree)
    assert (copy / "data" / "hole").stat().st_blocks == (tree / "data" / "hole").stat().st_blocks
    for name in ("data", "data/zeroes", "data/deep/random"):
        one, other = (copy / name).stat(), (tree / name).stat()
        assert (one.st_mode, one.st_uid, one.st_gid) == (other.st_mode, other.st_uid, other.st_gid)


@pytest.mark.parametrize(("filesystem", "mkfs"), [("ext4", "-b 4096"), ("ext2", "-b 1024")])
def test_an_ext_image_holds_the_tree_and_its_written_zeroes(
    filesystem: str, mkfs: str, tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    spec = DiskSpec.from_levels(Role.TARGET, 32 << 20, filesystem=filesystem, mkfs=mkfs, tree=str(tree))
    image, was_there = template.find_template(spec)
    assert not was_there
    assert template.find_template(spec) == (image, True)
    subprocess.run(["e2fsck", "-fn", image], check=True, capture_output=True, timeout=60)
    out = tmp_path / "out"
    out.mkdir()
    subprocess.run(["debugfs", "-R", f"rdump data {out}", image], check=True, capture_output=True, timeout=60)
    assert contents(out) == contents(tree)
    said = {
        name: subprocess.run(
            ["debugfs", "-R", f"stat data/{name}", image],
            check=True,
            capture_output=True,
            timeout=60,
            text=True,
        ).stdout
        for name in ("zeroes", "hole")
    }
    assert sum(int(line.partition("Blockcount:")[2] or 0) for line in said["zeroes"].splitlines()) >= 586
    assert sum(int(line.partition("Blockcount:")[2] or 0) for line in said["hole"].splitlines()) <= 24
    assert f"User: {(tree / 'data' / 'zeroes').stat().st_uid:5d}" in said["zeroes"]


@pytest.mark.parametrize("filesystem", ["xfs", "btrfs"])
def test_other_filesystems_hold_the_tree(
    filesystem: str, tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    spec = DiskSpec.from_levels(Role.TARGET, 320 << 20, filesystem=filesystem, tree=str(tree))
    image, _ = template.find_template(spec)
    check = {"xfs": ["xfs_repair", "-n", "-f"], "btrfs": ["btrfs", "check", "--readonly"]}[filesystem]
    subprocess.run([*check, image], check=True, capture_output=True, timeout=60)
    assert (tree / "data" / "deep" / "random").read_bytes() in image.read_bytes()


def test_a_tree_that_is_larger_than_the_disk_is_refused(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tree / "data" / "big").write_bytes(os.urandom(3 << 20))
    spec = DiskSpec.from_levels(Role.TARGET, 2 << 20, filesystem="ext4", tree=str(tree))
    with pytest.raises(MachineError, match="do not fit on a disk of 2M") as caught:
        template.find_template(spec)
    assert "size=" in caught.value.hint
    assert not list((tmp_path / "cache").rglob("*.part"))


@pytest.mark.parametrize("server", KINDS)
def test_a_root_of_packages_gets_the_server_that_this_host_has(server: str) -> None:
    kind = KINDS[server]
    try:
        kind.find_program(next(iter(kind.packages)))
    except PlatformUnusableError as error:
        pytest.skip(str(error))
    wanted = find_packages(cell("tcg@arm64", server=server))
    assert "sysbench" in wanted
    for package in kind.packages.values():
        assert any(name.startswith(package) for name in wanted), (package, wanted)
