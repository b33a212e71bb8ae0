"""Real machines of other architectures: what they are, what they run, and what is told of their programs.

What they boot is made if it has not been, for arm64 in two minutes or so, and what that takes is installed. One of
which this system's package sources have nothing is skipped.
"""

import hashlib
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from guestmark.agent.binary import PROGRAM
from guestmark.agent.wire import Pattern
from guestmark.appliance.paths import locate_cache
from guestmark.core.architectures import ARCHITECTURES, Architecture
from guestmark.core.errors import ExitStatus, GuestmarkError
from guestmark.core.machine_facts import EmulatedPrograms, GuestMachine
from guestmark.core.platform_spec import parse_platform
from guestmark.foreign import agents, kernels, parts, store
from guestmark.foreign.packages import Packages
from guestmark.foreign.progress import Progress
from guestmark.platforms.base import Machine
from guestmark.platforms.qemu.platform import QemuPlatform
from guestmark.report.shared_facts import restore_shared
from tests.framework import counted_programs, old_calls
from tests.framework.command_line import CommandLine
from tests.framework.guests import start
from tests.framework.known import a, known
from tests.framework.marks import thorough
from tests.framework.ssh_guest import guest_with_sshd
from tests.guest.test_counts import WITHIN, caused

MADE_S = 1500
pytestmark = [pytest.mark.timeout(MADE_S), pytest.mark.long]

FOREIGN = [row for row in ARCHITECTURES.values() if not row.is_host]
ARM64 = ARCHITECTURES["arm64"]
CLOCK_APART_S = 60.0
# A preparation takes minutes until its compiler is at work. SIGTERM and SIGHUP are handled as SIGINT is.
ENDINGS = (signal.SIGINT, signal.SIGKILL)


def can_be_had(row: Architecture, log: Path) -> None:
    """Makes what its machines boot. Skips the test where the package sources have nothing for it."""
    if row.root and parts.find_parts(row) is None:
        try:
            Packages(row, Progress()).refresh_lists(log)
        except GuestmarkError as error:
            pytest.skip(error.message)
    QemuPlatform(parse_platform(f"tcg@{row.name}").inner).make_parts((), Progress())


@pytest.mark.thorough
def test_the_same_sources_make_the_same_agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    can_be_had(ARM64, tmp_path / "log")
    first = parts.get_parts(ARM64).agent
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    second = agents.make_agent(ARM64, Progress())
    assert first != second
    assert first.read_bytes() == second.read_bytes()


@pytest.mark.thorough
@pytest.mark.timeout(2 * MADE_S)
def test_the_same_source_makes_the_same_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel of the least that is built: what could differ (times, names, paths, order) is in every one of them."""
    row = ARCHITECTURES["sparc64"]
    needed = ("64BIT", "PRINTK", "TTY", "PCI", "SHMEM", "VIRTIO_MENU", "VIRTIO_PCI", *kernels.REQUIRED)
    least = [f"CONFIG_{name}=y" for name in needed]
    monkeypatch.setattr(kernels, "read_fragment", lambda _: "\n".join([*least, "CONFIG_SMP=n", ""]))
    made = []
    for name in ("first", "second-with-a-longer-name"):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / name))
        made.append(kernels.make_kernel(row, Progress()).image)
    assert made[0] != made[1]
    assert made[0].read_bytes() == made[1].read_bytes()


@pytest.mark.parametrize("number", ENDINGS, ids=lambda number: str(number.name))
def test_a_preparation_that_is_ended_leaves_no_half_cache(
    guestmark: CommandLine, tmp_path: Path, number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    can_be_had(ARM64, tmp_path / "log")
    cache = tmp_path / "cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    home = store.find_architecture_directory(ARM64)
    process = guestmark.start("prepare", "tcg@arm64", env={"XDG_CACHE_HOME": str(cache)})
    scratch = _compiling(home, process)
    process.send_signal(number)
    _, told = process.communicate(timeout=30)
    said = told.decode().splitlines()
    if number != signal.SIGKILL:
        assert process.returncode == ExitStatus.INTERRUPTED
        assert said[-1].startswith("guestmark: stopped: the ")
    assert all(line.startswith("guestmark: ") for line in said), said
    deadline = time.monotonic() + 30
    while scratch.exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not scratch.exists()
    assert not list(home.glob("*-*-*/made.json"))
    running = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert str(scratch) not in running


def _compiling(home: Path, process: "subprocess.Popen[bytes]") -> Path:
    """The directory of the agent that is being made, once its compiler is at work.

    Kernel and root are made beside it, in directories of their own.
    """
    while process.poll() is None:
        for compiled in home.glob("guestmark-foreign-*/scratch/**/*.rlib"):
            return home / compiled.relative_to(home).parts[0]
        time.sleep(0.1)
    raise AssertionError(f"nothing was compiled: {process.communicate()[1].decode()}")


def test_programs_alone_are_emulated_with_their_children(tmp_path: Path) -> None:
    can_be_had(ARM64, tmp_path / "log")
    with start("user@arm64") as machine:
        found = a(EmulatedPrograms, machine.attest())
        assert found.programs_arch == "aarch64"
        child = machine.agent.exec(["sh", "-c", "uname -m; exit $?"], timeout_s=30)
        if found.emulated == "every program":
            assert child.stdout == b"aarch64\n"
        else:
            assert child.status != 0
        assert machine.agent.exec(["touch", "/etc/written"], timeout_s=30).ok
    assert not (parts.get_root(ARM64).path / "etc/written").exists()


def test_other_builds_are_marked_in_tables_and_documents(guestmark: CommandLine, tmp_path: Path) -> None:
    can_be_had(ARM64, tmp_path / "log")
    command = ("sysbench", "cpu", "--cpu-max-prime=500", "--events=100", "--time=0", "run")
    document = tmp_path / "document.json"
    done = guestmark(
        "exec", "--on", "host,tcg@arm64,user@arm64", "--blocks", "2", "--json", document, "--", *command,
        timeout=MADE_S,
    )  # fmt: skip
    assert "tcg@arm64, user@arm64 ran another build: sysbench" in " ".join(done.stdout.split())
    assert guestmark("show", "--details").stdout.count("arm64, another build") == 2
    trials = [
        trial["attestation"]
        for cell in restore_shared(json.loads(document.read_text()))["cells"]
        for trial in cell["trials"]
        if "arm64" in cell["id"]
    ]
    assert len(trials) == 4
    for found in trials:
        assert found["build_same_source"] is True
        assert found["build_version"].partition("+b")[0] == found["build_host_version"].partition("+b")[0]
        assert found["binary_sha256"] != found["host_binary_sha256"]


@pytest.mark.parametrize("row", [ARM64, thorough(ARCHITECTURES["s390x"])], ids=lambda row: str(row.name))
def test_a_machine_of_another_architecture_is_reached_by_ssh(
    guestmark: CommandLine, tmp_path: Path, row: Architecture
) -> None:
    """It is a guest with an sshd in it; guestmark is told nothing of it but how ssh gets there."""
    can_be_had(row, tmp_path / "log")
    parts.get_parts(row)
    with guest_with_sshd(f"tcg@{row.name}", tmp_path) as ssh:
        guestmark.environment |= {"GUESTMARK_SSH": ssh, "XDG_CACHE_HOME": str(locate_cache().parent)}
        command = ("exec", "--on", "host,ssh:lab1", "--blocks", "2", "--warmup", "0", "--json", "-")
        done = guestmark(*command, "--", "uname", "-m", timeout=MADE_S)
    assert done.status == 0, done.stderr
    there = [cell for cell in done.document()["cells"] if cell["platform"] == "ssh:lab1"]
    assert [trial["attestation"]["arch"] for cell in there for trial in cell["trials"]] == 2 * [
        row.machine_name
    ]


# Last in this file: a guest without an instruction for idling takes a processor until its last test.
@pytest.fixture(scope="module", params=FOREIGN, ids=lambda row: str(row.name))
def row(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Architecture:
    found = a(Architecture, request.param)
    can_be_had(found, tmp_path_factory.mktemp(found.name) / "log")
    return found


@pytest.fixture(scope="module")
def machine(row: Architecture) -> Iterator[Machine]:
    with start(f"tcg@{row.name}") as started:
        yield started


def test_a_machine_is_what_its_name_says(row: Architecture, machine: Machine) -> None:
    found = a(GuestMachine, machine.attest())
    assert found.guest.arch == row.machine_name
    assert found.guest.root == ("overlay" if row.root else "rootfs")
    assert found.guest.cpu_flags_missing == []
    assert known(found.confined).protects_files
    if row.root:
        said = machine.agent.exec(["uname", "-m"], timeout_s=60).stdout
        assert said.decode().strip() == row.machine_name


def test_bytes_and_digests_survive_the_other_byte_order(machine: Machine) -> None:
    data = os.urandom(3_000_017)
    machine.agent.write_file("/run/data", data)
    assert machine.agent.read_file("/run/data") == data
    assert machine.agent.sha256("/run/data").sha256 == hashlib.sha256(data).hexdigest()
    with start("host") as host:
        sums = [each.agent.compute_pattern_checksum(Pattern.RANDOM, 5 << 20) for each in (machine, host)]
    assert sums[0] == sums[1]


def test_blocks_are_those_of_the_program(row: Architecture, machine: Machine) -> None:
    if row.name not in counted_programs.CODE:
        pytest.skip("its programs have 32 bits")
    code = counted_programs.CODE[row.name]
    blocks = caused(machine, "tcg_blocks", lambda times: counted_programs.jumps(times, code), 50_000)
    assert blocks == pytest.approx(50_000, rel=WITHIN)


def test_programs_run_and_know_the_date(row: Architecture, machine: Machine) -> None:
    if not row.root:
        pytest.skip("it has no programs")
    done = machine.agent.exec(["date", "+%s"], timeout_s=60)
    assert abs(int(done.stdout) - time.time()) < CLOCK_APART_S


@dataclass(frozen=True)
class Traced:
    """What was told of a program's calls."""

    operations: str  # a line for each, with its paths in hexadecimal
    promises: list[str]  # sizes and blocks of the files that its syncs covered


def _trace_calls(machine: Machine, program: bytes, folder: str) -> Traced:
    agent = machine.agent
    command, followed, traced = f"{folder}/program", f"{folder}/followed", f"{folder}/traced"
    for directory in (folder, followed, traced):
        agent.mkdir(directory, parents=True)
    agent.write_file(command, program, mode=0o755)
    words = ["--disk", followed, "--log", f"{folder}/log", "--", command, followed]
    done = agent.exec([PROGRAM, "follow", *words], timeout_s=60)
    assert done.ok, done.stderr
    operations = agent.read_file(f"{folder}/log").decode()
    done = agent.exec(
        [PROGRAM, "syncs", "--disk", traced, "--", command, traced], stdin=b"g" * 100, timeout_s=60
    )
    assert done.ok, done.stderr
    promises = []
    for line in done.stdout.decode().splitlines():
        kind, *rest = line.split()
        if kind in {"file", "sync", "end"}:
            # Neither the file's number nor digests of its blocks are the same elsewhere.
            shown = [re.sub(":.*", "", word) for word in (rest[1:] if kind == "file" else rest)]
            promises.append(" ".join([kind, *shown]).replace(f"{traced}/".encode().hex(), ""))
    return Traced(operations.replace(f"{followed}/".encode().hex(), ""), promises)


def test_the_calls_of_a_program_are_the_same_on_every_architecture(
    row: Architecture, machine: Machine, tmp_path: Path
) -> None:
    """Each has its own: old ones beside those with a directory, others for 64 bits, arguments in memory."""
    if row.name == "sparc64":
        pytest.skip(
            "its small kernel lacks a call that it takes to follow a program, which the agent says (ENOSYS)"
        )
    there = _trace_calls(machine, old_calls.build_program(row.cross.name, tmp_path), "/run/old-calls")
    with start("host") as host:
        here = _trace_calls(host, old_calls.build_program("gcc", tmp_path), str(tmp_path / "here"))
    assert there == here
    assert len(here.promises) > 4
    calls = {line.split()[0] for line in here.operations.splitlines()}
    assert calls >= {"create", "write", "truncate", "map", "rename", "link", "remove", "fsync", "msync"}


def test_a_guest_cannot_change_its_root_on_the_host(row: Architecture, machine: Machine) -> None:
    root = parts.get_parts(row).root
    if root is None:
        pytest.skip("it has no root")
    machine.agent.write_file("/etc/written", b"here")
    assert not (root.path / "etc/written").exists()
