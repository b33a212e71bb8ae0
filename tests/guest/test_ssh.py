"""Another machine over ssh, against an sshd of the test's own: what is measured there, and that nothing stays."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from guestmark.agent.clocks import read_host_boot_id
from guestmark.core.errors import AttestationError, GuestmarkError, MachineError
from guestmark.core.machine_facts import RemoteMachine
from guestmark.platforms import registry
from guestmark.platforms.base import Usable
from guestmark.platforms.ssh import platform
from guestmark.platforms.ssh.platform import Remote
from tests.framework.command_line import CommandLine
from tests.framework.guests import start
from tests.framework.sshd import Sshd, sshd

pytestmark = pytest.mark.skipif(shutil.which("ssh") is None, reason="install the package openssh-client")


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Sshd, Path]]:
    """A server whose sessions have a directory for temporary files, and a home, of their own."""
    directory = tmp_path_factory.mktemp("sshd")
    scratch = directory / "scratch"
    scratch.mkdir()
    with sshd(directory, {"TMPDIR": str(scratch), "LAB": "one"}) as server:
        before = os.environ.get("GUESTMARK_SSH")
        os.environ["GUESTMARK_SSH"] = server.client
        try:
            yield server, scratch
        finally:
            if before is None:
                del os.environ["GUESTMARK_SSH"]
            else:
                os.environ["GUESTMARK_SSH"] = before


@contextlib.contextmanager
def remote(dest: str = "lab1") -> Iterator[Remote]:
    with start(f"ssh:{dest}") as machine:
        assert isinstance(machine, Remote)
        yield machine


def test_what_the_machine_is_is_attested(there: tuple[Sshd, Path]) -> None:
    with remote() as machine:
        found = machine.attest()
        time.sleep(0.2)
        said = machine.remarks()
    assert isinstance(found, RemoteMachine)
    assert (found.dest, found.arch, found.kernel) == ("lab1", os.uname().machine, os.uname().release)
    assert found.boot_id == read_host_boot_id()
    assert found.is_this_host
    assert said == [
        "lab1 is this very host, under another name"
    ]  # and no remark about its clock, which is ours
    assert found.mitigations.keys() == {
        file.name for file in Path("/sys/devices/system/cpu/vulnerabilities").iterdir()
    }
    assert 0 < found.connection.round_trip_ns < 1e9
    drift, error = found.connection.clock_drift, found.connection.clock_drift_error
    assert drift is not None
    assert error is not None
    assert abs(drift) <= error  # the same clock, read over the connection


def test_the_way_to_this_host_is_measured(there: tuple[Sshd, Path], guestmark: CommandLine) -> None:
    short = "workloads.network.params.time=50ms"
    done = guestmark(
        "run", "network", "--on", "host,ssh:lab1", "--blocks", "1", "--override", short, "--json", "-", timeout=300
    )  # fmt: skip
    assert done.status == 0, done.stderr
    (cell,) = [cell for cell in done.document()["cells"] if cell["platform"] == "ssh:lab1"]
    (trial,) = cell["trials"]
    assert trial["attestation"]["network"]["network"] == "existing"
    assert trial["attestation"]["network"]["machine"]["mtu"] >= 1280
    assert trial["measurements"]["upload"] > 0
    assert trial["measurements"]["datagrams_up_1400/s"] > 0


def test_an_address_that_leads_nowhere_is_named(there: tuple[Sshd, Path]) -> None:
    # Of a network for documentation (RFC 5737).
    factors = {"network": "existing", "peer_address": "192.0.2.1"}
    with start("ssh:lab1", **factors) as machine, pytest.raises(AttestationError, match=r"192\.0\.2\.1"):
        machine.attest()


@pytest.mark.parametrize("level", ["tap", "veth"])
def test_no_network_is_set_up_for_the_machine(
    there: tuple[Sshd, Path], guestmark: CommandLine, level: str
) -> None:
    done = guestmark("exec", "--on", "ssh:lab1", "--set", f"network={level}", "--", "true")
    assert done.status
    assert "guestmark sets up no network for it; use network=existing" in done.stderr


def test_agent_and_directory_are_gone_afterwards(there: tuple[Sshd, Path]) -> None:
    _, scratch = there
    with remote() as machine:
        assert [str(path) for path in scratch.iterdir()] == [machine.scratch]
        assert list(Path(machine.scratch).iterdir()) == []  # its file is gone already
        assert Path(machine.scratch).stat().st_mode & 0o777 == 0o700
        pid = machine.agent.hello().pid
        left = machine.agent.background(["sleep", "300"])
        assert left.is_running
    assert list(scratch.iterdir()) == []
    assert not Path(f"/proc/{pid}").exists()


def test_commands_run_as_the_user_there(there: tuple[Sshd, Path]) -> None:
    with remote() as machine:
        user = machine.caller()
    assert user.env["LAB"] == "one"
    assert user.cwd == user.env["HOME"]
    assert not any(name.startswith("SSH_") for name in user.env)


def test_a_probe_finds_out_by_connecting(there: tuple[Sshd, Path]) -> None:
    assert isinstance(registry.get_platform("ssh:lab1").probe(), Usable)


def test_files_are_pushed_and_the_same_program_is_measured(
    there: tuple[Sshd, Path], guestmark: CommandLine, tmp_path: Path
) -> None:
    _, scratch = there
    program, data = tmp_path / "bench", tmp_path / "data"
    program.write_text("#!/bin/sh\ncat data 1>&2; pwd\n")
    program.chmod(0o755)
    data.write_text("forty-two")
    guestmark.environment["GUESTMARK_SSH"] = os.environ["GUESTMARK_SSH"]
    done = guestmark(
        "exec", "--on", "host,ssh:lab1", "--blocks", 1, "--warmup", 0, "--push", "bench", "--push", "data",
        "--json", "-", "--", "./bench", cwd=tmp_path,
    )  # fmt: skip
    assert done.status == 0, done.stderr
    assert {entry["path"].rpartition("/")[2] for entry in done.document()["programs"]} == {"bench"}
    assert "differs from this host's file" not in done.stderr
    assert list(scratch.iterdir()) == []


def test_what_is_missing_there_is_named(
    there: tuple[Sshd, Path], guestmark: CommandLine, tmp_path: Path
) -> None:
    guestmark.environment["GUESTMARK_SSH"] = os.environ["GUESTMARK_SSH"]
    program = tmp_path / "only-here"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    guestmark.environment["PATH"] = f"{tmp_path}:{os.environ['PATH']}"
    done = guestmark("exec", "--on", "host,ssh:lab1", "--blocks", 1, "--warmup", 0, "--", "only-here")
    assert done.status == 1
    assert (
        "command not found on the machine: 'only-here' (install it on the machine, or copy it: --push FILE)"
        in " ".join((done.stdout + done.stderr).split())
    )


def test_a_shell_there_is_the_users_own(there: tuple[Sshd, Path], guestmark: CommandLine) -> None:
    guestmark.environment["GUESTMARK_SSH"] = os.environ["GUESTMARK_SSH"]
    done = guestmark("shell", "--on", "ssh:lab1", "--", "sh", "-c", "echo $LAB; exit 7")
    assert (done.status, done.stdout) == (7, "one\n")


def test_a_restart_command_is_run_before_each_trial_and_waited_for(
    there: tuple[Sshd, Path], tmp_path: Path
) -> None:
    restarted, asked = tmp_path / "restarted", tmp_path / "asked"
    ready = f"echo >> {asked}; [ $(wc -l < {asked}) -ge 2 ]"
    with start("ssh:lab1", restart=f"echo $GUESTMARK_DEST >> {restarted}", ready=ready) as machine:
        found = machine.attest()
        assert machine.phases["made_fresh"] >= 1.0  # ready only when it was asked again
    assert isinstance(found, RemoteMachine)
    assert found.fresh.startswith("its restart command")
    assert restarted.read_text() == "lab1\n"
    assert asked.read_text() == "\n\n"


def test_what_a_restart_command_leaves_in_the_background_is_not_waited_for(
    there: tuple[Sshd, Path], tmp_path: Path
) -> None:
    """As a hypervisor that was started by hand: it goes on, and holds the output of the command."""
    begin = time.monotonic()
    pid = tmp_path / "pid"
    with start("ssh:lab1", restart=f"sleep 30 & echo $! > {pid}"):
        assert time.monotonic() - begin < 20
        os.kill(int(pid.read_text()), signal.SIGKILL)  # it was not ended either


def test_a_machine_that_is_still_starting_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a reboot: nobody listens for a while."""
    flag = tmp_path / "up"
    client = tmp_path / "ssh"
    client.write_text(
        f'#!/bin/sh\n[ -e {flag} ] || {{ echo "connect to host lab1 port 22: Connection refused" >&2; exit 255; }}\n'
        'for last; do :; done\nexec /bin/sh -c "$last"\n'
    )
    client.chmod(0o755)
    monkeypatch.setenv("GUESTMARK_SSH", str(client))
    with start("ssh:lab1", restart=f"(sleep 0.5; touch {flag}) > /dev/null 2>&1 &") as machine:
        assert machine.agent.hello().boot_id == read_host_boot_id()


def test_a_machine_that_does_not_come_back_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "RESTART_S", 1.2)
    monkeypatch.setenv("GUESTMARK_SSH", "ssh -F none -p 1 -o HostName=127.0.0.1")
    refused = pytest.raises(MachineError, match="refuses connections, 1 s after it was made fresh")
    with refused, start("ssh:lab1", restart="true"):
        raise AssertionError("it was measured all the same")


@pytest.mark.parametrize(
    ("levels", "telling"),
    [
        (
            {"restart": "echo no such snapshot; exit 3"},
            "was not restarted: .*status 3: no such",
        ),
        ({"ready": "true"}, "ready needs restart"),
    ],
)
def test_what_cannot_make_it_fresh_is_told(levels: dict[str, str], telling: str) -> None:
    with pytest.raises(GuestmarkError, match=telling), start("ssh:lab1", **levels):
        raise AssertionError("it was measured all the same")
