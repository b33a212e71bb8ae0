"""A guest runs the host's own files as the caller does, and cannot change them."""

import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from guestmark.agent.client import CommandError
from guestmark.platforms.base import Machine
from tests.framework.known import known


def test_programs_are_the_hosts_own_bytes(guest: Machine) -> None:
    program = known(shutil.which("python3"))
    assert guest.agent.sha256(program).sha256 == hashlib.sha256(Path(program).read_bytes()).hexdigest()


def test_a_relative_path_means_the_same(guest: Machine, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    tool = tmp_path / "bin" / "tool"
    tool.write_text("#!/bin/sh\necho from $PWD\n")
    tool.chmod(0o755)
    result = guest.agent.exec(["bin/tool"], cwd=str(tmp_path), env={"PATH": os.environ["PATH"]}, timeout_s=30)
    assert result.stdout.decode() == f"from {tmp_path}\n"


def test_what_a_guest_writes_stays_there(run: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("host")
    assert run(f"echo guest > {tmp_path}/kept; echo new > {tmp_path}/made; cat {tmp_path}/kept") == "guest\n"
    assert (tmp_path / "kept").read_text() == "host"
    assert not (tmp_path / "made").exists()


def test_the_shared_root_itself_is_read_only(run: Callable[..., str]) -> None:
    lower = [line for line in run("cat /proc/mounts").splitlines() if line.split()[1] == "/"]
    assert [line.split()[2] for line in lower][-1] == "overlay"


def test_the_caller_is_kept(run: Callable[..., str]) -> None:
    assert run("id -u; id -g; id -G", uid=1234, gid=2345, groups=[2345, 3456]).split() == [
        "1234", "2345", "2345", "3456",
    ]  # fmt: skip
    assert run("echo $COLOUR", env={"COLOUR": "rot", "PATH": os.environ["PATH"]}) == "rot\n"


def test_an_ordinary_user_can_work(run: Callable[..., str], tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    assert run(
        "exec 3>/dev/shm/x; echo ok > /dev/null; mktemp; ls -d /proc/self", uid=1234, gid=1234, groups=[]
    ).endswith("/proc/self\n")


def test_there_is_no_network_but_loopback(run: Callable[..., str]) -> None:
    assert sorted(run("ls /sys/class/net").split()) == ["lo"]
    assert "UP" in run("cat /sys/class/net/lo/operstate; cat /sys/class/net/lo/flags; echo UP")


def test_a_missing_command_is_told_apart(guest: Machine) -> None:
    with pytest.raises(CommandError, match="no-such-program"):
        guest.agent.exec(["no-such-program"], timeout_s=10)


def test_output_past_the_bound_is_counted(guest: Machine) -> None:
    result = guest.agent.exec(["head", "-c", "3000000", "/dev/zero"], timeout_s=60, output_limit=1000)
    assert (len(result.stdout), result.stdout_discarded) == (1000, 2_999_000)


def test_bytes_that_are_no_text(run: Callable[..., str], guest: Machine) -> None:
    result = guest.agent.exec(["printf", r"\377\376\000x"], timeout_s=10)
    assert result.stdout == b"\xff\xfe\x00x"


def test_the_time_limit_ends_the_whole_group(guest: Machine, run: Callable[..., str]) -> None:
    result = guest.agent.exec(["sh", "-c", "sleep 77 & sleep 77"], timeout_s=0.5)
    assert result.timed_out
    assert run("cat /proc/[0-9]*/cmdline | tr '\\0' ' '").count("sleep 77") == 0


def test_no_zombies(run: Callable[..., str]) -> None:
    run("for i in 1 2 3 4 5; do (sleep 0.01 &) ; done; sleep 0.2")
    assert "Z" not in run("cat /proc/[0-9]*/stat 2>/dev/null | sed 's/.*) //' | cut -c1").split()


def test_both_clocks_agree(guest: Machine) -> None:
    result = guest.agent.exec(["sleep", "1"], timeout_s=30)
    assert result.wall_s == pytest.approx(result.guest_wall_s, abs=0.05 + result.wall_error_s)
    assert not result.clock_warning


def test_files_cross_in_both_directions(guest: Machine) -> None:
    content = os.urandom(300_000)
    guest.agent.write_file("/run/content", content)
    assert guest.agent.read_file("/run/content") == content
