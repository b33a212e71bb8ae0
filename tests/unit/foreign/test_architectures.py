"""Architectures by name, what is kept of their parts, and what reports say of programs of another one."""

import gzip
import json
import os
import re
import struct
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guestmark.cli.do.doctor import describe_state, examine_architectures
from guestmark.core.architectures import (
    ARCHITECTURES,
    Architecture,
    Source,
    find_architecture,
    find_host_architecture,
)
from guestmark.core.errors import GuestmarkError, PlatformUnusableError, UsageError
from guestmark.core.findings import Build, Program
from guestmark.core.levels import Levels
from guestmark.core.metric import Better, Metric
from guestmark.core.model import Cell, Published, PublishedFigure, WorkloadSpec
from guestmark.core.own_program import find_agent_binary
from guestmark.core.platform_spec import PlatformSpec, parse_platform
from guestmark.engine.preflight import build_boot_files, find_misplaced_cells
from guestmark.foreign import agents, carried, kernels, parts, roots, store
from guestmark.foreign.parts import survey_parts
from guestmark.foreign.progress import Progress
from guestmark.page.text import join_plain_text
from guestmark.platforms import registry
from guestmark.platforms.qemu.platform import QemuPlatform
from guestmark.platforms.user import platform
from guestmark.report.sections import locations
from guestmark.report.sections.filesystem_conclusions import list_filesystem_conclusions
from guestmark.stats import Severity
from guestmark.stats.analysis import analyse_run
from guestmark.workloads.common.program import describe_builds
from tests.framework import CHECKOUT
from tests.framework.cells import cell, spec
from tests.framework.known import known
from tests.framework.runs import constructed
from tests.unit.stats.test_conditions import analysed, sound
from tests.unit.stats.test_conditions import cell as exec_cell

FOREIGN = [row for row in ARCHITECTURES.values() if not row.is_host]
ROW = next(row for row in FOREIGN if row.root)
OTHER = f"tcg@{ROW.name}"


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "guestmark" / "foreign" / ROW.name


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("aarch64", "arm64"),
        ("ARM64", "arm64"),
        ("amd64", "x86_64"),
        ("ppc64le", "ppc64el"),
        ("armv7l", "armhf"),
    ],
)
def test_debians_name_and_that_of_uname_mean_the_same(written: str, meant: str) -> None:
    assert find_architecture(written).name == meant
    assert str(parse_platform(f"tcg@{written.lower()}")) == f"tcg@{meant}"


def test_no_name_means_two_architectures() -> None:
    names = [name for row in ARCHITECTURES.values() for name in dict.fromkeys(row.names)]
    assert len(names) == len(set(names))


def test_an_unknown_architecture_names_the_nearest() -> None:
    with pytest.raises(UsageError) as caught:
        parse_platform("tcg@sparc")
    assert "did you mean 'sparc64'" in caught.value.hint


def test_the_hosts_own_architecture_is_no_other() -> None:
    own = parse_platform(f"tcg@{find_host_architecture().machine_name}")
    assert own.foreign_architecture is None
    assert own.shares_root
    assert [parse_platform(f"tcg@{row.name}").foreign_architecture for row in FOREIGN] == FOREIGN
    assert not any(parse_platform(f"tcg@{row.name}").shares_root for row in FOREIGN)


def test_kvm_of_another_architecture_is_refused_with_what_works() -> None:
    with pytest.raises(UsageError) as caught:
        registry.get_platform(f"kvm@{ROW.name}")
    assert "own processor" in caught.value.message
    assert f"tcg@{ROW.name}" in caught.value.hint


def test_user_needs_an_architecture_with_programs_that_is_not_the_hosts() -> None:
    with pytest.raises(UsageError, match="needs the architecture"):
        parse_platform("user")
    for name in (find_host_architecture().name, "sparc64"):
        with pytest.raises(PlatformUnusableError):
            registry.get_platform(f"user@{name}")


def test_guests_of_another_architecture_hold_no_others_and_say_why() -> None:
    for inner in ("kvm", "tcg", f"kvm@{ROW.name}"):
        with pytest.raises(PlatformUnusableError, match="neither this host's files"):
            registry.get_platform(f"tcg@{ROW.name}/{inner}")


def test_every_row_is_complete() -> None:
    for row in ARCHITECTURES.values():
        assert row.cpu_suffix.endswith("-cpu")
        assert row.cross_prefix.endswith("-")
        assert bool(row.kernel_package) == (row.kernel is Source.DISTRIBUTION)
        if row.kernel is Source.BUILT:
            kernels.check_configuration(kernels.read_fragment(row), row.name)
            assert row.kernel_arch
        assert row.page_size % 4096 == 0
        assert row.kernel_marks


def test_more_processors_than_a_machine_can_have_are_refused() -> None:
    (row,) = [row for row in FOREIGN if not row.several_processors]
    platform = QemuPlatform(parse_platform(f"tcg@{row.name}").inner)
    with (
        pytest.raises(PlatformUnusableError, match="one processor"),
        platform.start(cell(f"tcg@{row.name}", smp="2")),
    ):
        pass


# --- parts -------------------------------------------------------------------------------------------------


def made(kind: str = "agent", content: bytes = b"agent", tools: str = "1") -> Path:
    with store.make_part(ROW, kind, "key", Progress()) as making:
        (making.path / "file").write_bytes(content)
        return making.complete({"compiler": tools}, ("file",))


def test_a_part_is_found_by_what_is_ours_whatever_tools_made_it(own_cache: Path) -> None:
    assert store.find_part(ROW, "agent", "key") is None
    first, second = made(tools="1"), made(tools="2")
    os.utime(first / store.MADE, ns=(1, 1))
    assert first != second
    assert store.find_part(ROW, "agent", "key") == second
    assert store.find_part(ROW, "agent", "other") is None
    assert store.read_inputs(second)["tools"] == {"compiler": "2"}


def test_the_same_inputs_make_the_same_part_once(own_cache: Path) -> None:
    first = made()
    inode = first.stat().st_ino
    assert made() == first
    assert first.stat().st_ino == inode


def test_what_is_interrupted_leaves_nothing(own_cache: Path) -> None:
    def interrupted() -> None:
        with store.make_part(ROW, "agent", "key", Progress()) as making:
            (making.path / "file").write_bytes(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert store.find_part(ROW, "agent", "key") is None
    assert [path.name for path in own_cache.iterdir()] == [".lock"]


def test_a_damaged_part_is_not_used(own_cache: Path) -> None:
    part = made()
    (part / "file").write_bytes(b"other")
    with pytest.raises(GuestmarkError, match="not the file that was built"):
        store.check_part(part)


def test_the_latest_agent_is_carried_and_every_root(own_cache: Path) -> None:
    for name in ("agent-new-1", "agent-old-1", "kernel-old-1", "root-bare-1", "root-full-1"):
        (own_cache / name).mkdir(parents=True)
        (own_cache / name / store.MADE).touch()
    os.utime(own_cache / "agent-old-1" / store.MADE, (1, 1))
    assert [part.name for part in carried.list_parts(ROW)] == [
        "agent-new-1", "kernel-old-1", "root-bare-1", "root-full-1",
    ]  # fmt: skip


def test_parts_are_carried_whole_or_not_at_all(
    own_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = made()
    carried.save_parts([ROW], tmp_path / "parts.tar.gz", Progress())
    (part / "file").write_bytes(b"other")
    carried.save_parts([ROW], tmp_path / "damaged.tar.gz", Progress())
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "elsewhere"))
    with pytest.raises(GuestmarkError, match="not the file that was built"):
        carried.load_parts(tmp_path / "damaged.tar.gz")
    assert carried.list_parts(ROW) == []
    (there,) = carried.load_parts(tmp_path / "parts.tar.gz")
    assert (there / "file").read_bytes() == b"agent"
    assert store.find_part(ROW, "agent", "key") == there
    (tmp_path / "nothing.tar.gz").write_bytes(b"no archive")
    with pytest.raises(GuestmarkError):
        carried.load_parts(tmp_path / "nothing.tar.gz")


def test_what_has_to_be_installed_is_said_in_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for tool in ("apt-cache",):
        (tmp_path / tool).symlink_to(f"/usr/bin/{tool}")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(PlatformUnusableError) as caught:
        parts.check_parts(find_architecture("sparc64"))
    assert caught.value.message.count("\n") == 0
    for package in ("gcc-sparc64-linux-gnu", "flex", "bison", "libc6-dev-sparc64-cross"):
        assert package in caught.value.hint


def test_other_machines_get_an_agent_that_is_made(
    own_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert agents.find_for_machine(find_host_architecture().machine_name) == find_agent_binary()
    with pytest.raises(PlatformUnusableError, match="no agent for m68k"):
        agents.find_for_machine("m68k")
    with pytest.raises(agents.AgentNotBuiltError) as caught:
        agents.find_for_machine(ROW.machine_name)
    assert caught.value.architecture is ROW
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(PlatformUnusableError) as missing:
        parts.get_agent(ROW)
    assert ROW.cross.package in missing.value.hint
    monkeypatch.setattr(agents, "compute_key", lambda _: "key")
    part = made()
    assert agents.find_for_machine(ROW.machine_name) == parts.get_agent(ROW) == part / "guestmark-agent"


def test_a_missing_emulator_is_said_before_anything_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    found = known(QemuPlatform(parse_platform(f"tcg@{ROW.name}").inner).find_missing(Levels({})))
    assert ROW.emulator.name in found.reason
    assert ROW.emulator.package in found.hint


def test_a_kernel_without_virtio_is_told_by_its_configuration(tmp_path: Path) -> None:
    kernel = tmp_path / "vmlinuz-6.1.0-test"
    kernel.write_bytes(image_of(ROW) + b"Linux version 6.1.0-test (me@here)")
    config = tmp_path / "config-6.1.0-test"
    config.write_text("".join(f"CONFIG_{name}=y\n" for name in kernels.REQUIRED))
    assert kernels.describe_user_kernel(ROW, str(kernel)).release == "6.1.0-test"
    config.write_text(
        config.read_text().replace("CONFIG_VIRTIO_CONSOLE=y", "# CONFIG_VIRTIO_CONSOLE is not set")
    )
    with pytest.raises(GuestmarkError, match="without VIRTIO_CONSOLE"):
        kernels.describe_user_kernel(ROW, str(kernel))


@given(lacking=st.integers(1, 27))
def test_a_damaged_archive_of_a_kernel_is_refused(
    tmp_path_factory: pytest.TempPathFactory, lacking: int
) -> None:
    kernel = tmp_path_factory.mktemp("kernel") / "vmlinuz-6.1.0-test"
    kernel.write_bytes(gzip.compress(image_of(ROW))[:-lacking])
    with pytest.raises(GuestmarkError, match="cannot be unpacked"):
        kernels.describe_user_kernel(ROW, str(kernel))


@pytest.mark.parametrize("row", FOREIGN, ids=[row.name for row in FOREIGN])
def test_a_file_that_is_no_kernel_of_the_architecture_is_refused(row: Architecture, tmp_path: Path) -> None:
    kernel = tmp_path / "vmlinuz-6.1.0-test"
    kernel.write_bytes(image_of(row))
    assert kernels.describe_user_kernel(row, str(kernel)).release == "6.1.0-test"
    others = [
        tmp_path / f"vmlinuz-{other.name}" for other in FOREIGN if other.kernel_marks != row.kernel_marks
    ]
    for other, image in zip((other for other in FOREIGN if other is not row), others, strict=True):
        image.write_bytes(image_of(other))
    for wanted in (Path("/etc/passwd"), Path("/bin/true"), *others):
        with pytest.raises(GuestmarkError, match=f"{wanted} is not a Linux kernel for {row.name}"):
            kernels.describe_user_kernel(row, str(wanted))


def image_of(row: Architecture) -> bytes:
    """The start of a kernel for it, as far as it is looked at."""
    place, mark = row.kernel_marks[0]
    return bytes(place) + mark + bytes(16)


def test_keys_change_with_what_parts_are_made_from() -> None:
    assert roots.compute_key(ROW, ["fio"]) == roots.compute_key(ROW, ["fio", "bash"])  # every root has that
    assert roots.compute_key(ROW, ["fio"]) != roots.compute_key(ROW, [])
    assert len({agents.compute_key(row) for row in FOREIGN}) == len(FOREIGN)


def test_the_kernel_knows_programs_by_their_machine_and_byte_order(tmp_path: Path) -> None:
    for order, name in (("<", 183), (">", 22)):
        ident = b"\x7fELF\x02" + (b"\x01" if order == "<" else b"\x02") + b"\x01" + bytes(9)
        (tmp_path / "true").write_bytes(ident + struct.pack(f"{order}HH", 3, name))
        magic, mask = (
            bytes.fromhex(part.replace("\\x", ""))
            for part in platform.format_binary_magic(tmp_path / "true").split(":")
        )
        fixed = ident + struct.pack(f"{order}HH", 2, name)  # an executable that is not position-independent
        object_file = ident + struct.pack(f"{order}HH", 1, name)
        seen = [_masked(head, mask) for head in (magic, fixed, object_file)]
        assert seen[0] == seen[1] != seen[2]
    assert not platform.is_static("/bin/sh")


def _masked(head: bytes, mask: bytes) -> bytes:
    return bytes(byte & bit for byte, bit in zip(head, mask, strict=True))


# --- programs ----------------------------------------------------------------------------------------------


def test_programs_are_not_asked_for_where_there_are_none() -> None:
    command = cell("tcg@sparc64", spec("exec", command=["true"]))
    write = cell("tcg@sparc64", spec("filewrite", amount="1M"))
    (left_out,) = find_misplaced_cells([command, write])
    assert left_out.covers(command)
    assert "filewrite" in left_out.hint
    (own,) = find_misplaced_cells(
        [
            cell(f"user@{ROW.name}", spec("filewrite", amount="1M")),
            cell(f"user@{ROW.name}", spec("exec", command=["true"])),
        ]
    )
    assert "not emulated" in own.reason
    (two,) = find_misplaced_cells([cell("tcg@sparc64", spec("filewrite", amount="1M"), smp="2")])
    assert "one processor" in two.reason


def test_what_is_missing_for_all_cells_is_said_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path))
    write = cell("tcg@sparc64", spec("filewrite", amount="1M"))
    cells = [replace(write, id="one"), replace(write, id="two"), replace(write, id="one#2", null_of="one")]
    (left_out,) = build_boot_files([*cells, cell("host", "exec")])
    assert left_out.name == "tcg@sparc64"
    assert "sparc64-linux-gnu-gcc" in left_out.reason
    assert "gcc-sparc64-linux-gnu" in left_out.hint
    assert all(map(left_out.covers, cells))


def test_a_program_of_another_architecture_is_another_build() -> None:
    found = known(describe_builds(cell(f"tcg@{ROW.name}"), "true", "/bin/true"))
    assert found.said == f"another build: true, {ROW.name}"  # without a root nothing is known of its version
    assert describe_builds(cell("tcg"), "true", "/bin/true") is None


def build(same: bool = True) -> Build:
    words = "another build" if same else "another version"
    return Build(said=f"{words}: sysbench 1.0.20, {ROW.name}", architecture=ROW.name, same_source=same)


def test_other_binaries_are_warned_of_and_other_versions_take_verdicts_back() -> None:
    program = Program(path="/usr/bin/x", sha256="a", host_path="/usr/bin/x", host_sha256="b")
    cells = (
        (exec_cell("host", baseline=True), 1.0),
        (exec_cell(OTHER, PlatformSpec.read(OTHER)), 8.0),
    )
    for same, severity in ((True, Severity.WARNING), (False, Severity.SEVERE)):
        run = sound(cells, {"host": [program], OTHER: [program, build(same)]})
        result = analysed(run)
        (finding,) = [
            found
            for workload in result.workloads
            for found in workload.findings
            if found.name == "other binaries"
        ]
        assert finding.severity is severity
        assert f"{OTHER} ran another" in finding.message
        host, guest = result.workloads[0].shown_cells
        assert (locations.describe_build(host), locations.describe_build(guest).split(",")[0]) == (
            "the host's",
            ROW.name,
        )


# --- filesystems ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ext4", "ext3", "verdict"),
    [
        (29.6, 7.6, "the published conclusion holds, though by another factor."),
        (7.6, 29.6, "it does not hold here."),
    ],
)
def test_the_filesystem_is_told_from_the_disk(ext4: float, ext3: float, verdict: str) -> None:
    write = WorkloadSpec("filewrite", {}, "sequential write", key="write")
    disk = [
        (Cell(name, write, PlatformSpec.read("tcg@sparc64"), {"filesystem": name}, name == "ext4"), ratio)
        for name, ratio in {"ext4": 3.0, "ext3": 1.0}.items()
    ]
    run = constructed(disk)
    throughput = Metric("throughput", "B/s", Better.HIGHER)
    trials = tuple(
        replace(
            trial,
            measurements=tuple(
                replace(each, metric=throughput) if each.metric.name == "wall_s" else each
                for each in trial.measurements
            ),
        )
        for trial in run.trials
    )
    published = Published(
        "then", "throughput", "MB/s", "throughput",
        (PublishedFigure({"filesystem": "ext4"}, ext4), PublishedFigure({"filesystem": "ext3"}, ext3)),
    )  # fmt: skip
    # What took the longer time was not the faster one.
    times = replace(published, metric="wall_s", unit="s", percent_of="time", figures=(
        PublishedFigure({"filesystem": "ext4"}, 1 / ext4), PublishedFigure({"filesystem": "ext3"}, 1 / ext3),
    ))  # fmt: skip
    plan = replace(run.plan, metrics=(throughput, *run.plan.metrics[1:]), published=(times, published))
    (bullets,) = list_filesystem_conclusions(analyse_run(plan, trials, run.unusable))
    first, second = map(join_plain_text, bullets.items)
    assert "with ext4" in first
    assert first.endswith("the filesystem makes that difference.")
    assert "published ×3.9" in second
    assert verdict in second
    assert list_filesystem_conclusions(analyse_run(run.plan, run.trials[::2], run.unusable)) == []


def test_documents_of_doctor_name_every_architecture() -> None:
    document = json.loads(json.dumps(examine_architectures()))
    assert document[0]["architecture"] == find_host_architecture().name
    assert {row["architecture"] for row in document} == set(ARCHITECTURES)
    assert all(describe_state(row) for row in document)


def test_an_architecture_that_no_package_source_serves_is_told_from_the_others(
    tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("guestmark.foreign.packages._LISTS", tmp_path)
    assert not any("package sources" in state.fault for state in survey_parts())
    (tmp_path / "mirror_dists_bookworm_InRelease").write_text(
        "Suite: stable\nArchitectures: all amd64 arm64 s390x\n"
    )
    told = {
        state.architecture.name
        for state in survey_parts()
        if "package sources have no packages" in state.fault
    }
    assert told == {row.name for row in ARCHITECTURES.values() if not row.is_host} - {
        "arm64",
        "s390x",
        "sparc64",
    }


def test_nothing_but_the_table_names_an_architecture() -> None:
    """Of the host's either. Network boots are x86's, as iPXE's ROMs are."""
    root = CHECKOUT / "python/guestmark"
    asked = re.compile(r"qemu-system-(x86|aarch64)|\b(X86_64|ARM64)\b|machine\(\) *[!=]=")
    found = [
        f"{path.relative_to(root)}: {line.strip()}"
        for path in root.rglob("*.py")
        if "workloads/netboot" not in str(path) and path.name != "architectures.py"
        for line in path.read_text().splitlines()
        if asked.search(line)
    ]
    assert found == []
