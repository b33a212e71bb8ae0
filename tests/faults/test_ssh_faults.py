"""ssh that refuses, machines that cannot take the agent, and connections that break: one line each, nothing left."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from guestmark.core.errors import GuestmarkError, MachineError
from guestmark.core.platform_spec import Layer
from guestmark.engine.preflight import find_unusable_platforms
from guestmark.platforms.base import Platform, Unusable, Usable
from guestmark.platforms.ssh.platform import SshPlatform
from guestmark.platforms.ssh.session import ALIVE_S, Session, format_serve_script
from guestmark.platforms.ssh_command import is_final
from tests.framework.cells import cell
from tests.framework.command_line import CommandLine
from tests.framework.guests import start
from tests.framework.namespaces import network
from tests.framework.processes import wait_until
from tests.framework.sshd import Sshd, key, sshd


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sshd]:
    directory = tmp_path / "sshd"
    (directory / "scratch").mkdir(parents=True)
    with sshd(directory, {"TMPDIR": str(directory / "scratch")}) as running:
        monkeypatch.setenv("GUESTMARK_SSH", running.client)
        yield running


STOP_S = 4.0  # less than an orderly end waits for a machine that does not answer


def refused(dest: str = "lab1") -> Unusable:
    found = SshPlatform(Layer("ssh", dest=dest)).probe()
    assert isinstance(found, Unusable)
    assert "\n" not in found.reason
    return found


def test_wrong_key(server: Sshd) -> None:
    (server.directory / "authorized").write_text(
        (key(server.directory / "other").with_suffix(".pub")).read_text()
    )
    found = refused()
    assert found.reason == "lab1 does not accept a login without a password"
    assert "ssh-copy-id lab1" in found.hint


def test_changed_host_key(server: Sshd) -> None:
    other = key(server.directory / "other").with_suffix(".pub").read_text()
    (server.directory / "known").write_text(f"[127.0.0.1]:{server.port} {other}")
    found = refused()
    assert found.reason == "lab1 has a different host key than the one in known_hosts"
    assert "ssh-keygen -R lab1" in found.hint


def test_unknown_host_key(server: Sshd) -> None:
    (server.directory / "known").write_text("")
    assert refused().reason == "lab1 has a host key that is not in known_hosts"


def test_nobody_listens(server: Sshd) -> None:
    server.stop()
    assert refused().reason == "lab1 refuses connections"


def test_no_such_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "config").write_text("")
    monkeypatch.setenv("GUESTMARK_SSH", f"ssh -F {tmp_path}/config")
    assert refused("nowhere.invalid").reason.startswith("nowhere.invalid has a name that cannot be resolved:")


def test_no_route(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "config").write_text("Host lab1\n HostName 255.255.255.255\n")  # broadcast: refused at once
    monkeypatch.setenv("GUESTMARK_SSH", f"ssh -F {tmp_path}/config")
    assert "lab1" in refused().reason


def test_an_ssh_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GUESTMARK_SSH", "no-such-ssh -v")
    assert refused().reason == "no-such-ssh is not installed"


def test_the_other_machines_go_on(server: Sshd, guestmark: CommandLine) -> None:
    with (server.directory / "ssh_config").open("r+") as config:
        rest = config.read()
        config.seek(0)
        config.write(f"Host broken\n Port 1\n{rest}")
    done = guestmark("exec", "--on", "ssh:broken,ssh:lab1", "--blocks", 1, "--warmup", 0, "--", "true")
    assert done.status == 1
    assert "ssh:broken cannot be used here and is left out: broken refuses connections" in done.stderr
    assert "ssh:lab1" in done.stdout
    assert "Traceback" not in done.stderr


def test_most_platforms_unusable_stops_unless_a_part_is_wanted(
    tmp_path: Path, guestmark: CommandLine
) -> None:
    config = tmp_path / "config"
    config.write_text("Host *\n HostName 127.0.0.1\n Port 1\n")
    guestmark.environment["GUESTMARK_SSH"] = f"ssh -F {config}"
    asked = ("exec", "--on", "host,ssh:a,ssh:b,ssh:c", "--blocks", 1, "--warmup", 0)
    stopped = guestmark(*asked, "--", "true")
    assert stopped.status == 3
    assert "3 of 4 platforms cannot be used here, so nothing was measured: ssh:a: " in stopped.stderr
    assert "--partial measures host nevertheless" in stopped.stderr
    assert not guestmark("runs").stdout.strip()
    went_on = guestmark(*asked, "--partial", "--", "true")
    assert went_on.status == 1
    assert "ssh:b cannot be used here and is left out" in went_on.stderr
    half = guestmark("exec", "--on", "host,ssh:a", "--blocks", 1, "--warmup", 0, "--", "true")
    assert half.status == 1


def local(tmp_path: Path, before: str) -> str:
    """An `ssh` that stays here: it runs the command for the other side in namespaces of its own, after `before`."""
    script = tmp_path / "local-ssh"
    inner = f'{before}\nexec /bin/sh -c "$last"\n'
    script.write_text(
        f"#!/bin/sh\nfor last; do :; done\nexport last\nexec unshare --mount /bin/sh -c {shlex.quote(inner)}\n"
    )
    script.chmod(0o755)
    return str(script)


EVERYWHERE = "/tmp /var/tmp /dev/shm ${HOME:-/root}"


@pytest.mark.skipif(os.getuid() != 0, reason="the namespace needs root")
def test_a_container_of_this_kernel_with_a_clock_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "ssh"
    inside = "unshare --time --fork --kill-child --monotonic 1000000"
    script.write_text(f'#!/bin/sh\nfor last; do :; done\nexec {inside} /bin/sh -c "$last"\n')
    script.chmod(0o755)
    monkeypatch.setenv("GUESTMARK_SSH", str(script))
    with start("ssh:lab1") as machine:
        done = machine.agent.exec(["sleep", "0.05"], timeout_s=10)
    assert done.wall_s == done.guest_wall_s >= 0.05
    assert done.clock_warning == ""


@pytest.mark.skipif(os.getuid() != 0, reason="mounting needs root")
def test_no_directory_where_programs_may_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounts = f"unset XDG_RUNTIME_DIR TMPDIR; for d in {EVERYWHERE}; do mount -t tmpfs -o noexec none $d; done"
    monkeypatch.setenv("GUESTMARK_SSH", local(tmp_path, mounts))
    reason = refused().reason
    assert reason.startswith("lab1 has no place for the agent: no program may be run in /tmp; ")
    assert reason.endswith("no program may be run in /dev/shm")


@pytest.mark.skipif(os.getuid() != 0, reason="mounting needs root")
def test_no_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounts = (
        f"unset XDG_RUNTIME_DIR TMPDIR; for d in {EVERYWHERE}; do mount -t tmpfs -o size=64k none $d; done"
    )
    monkeypatch.setenv("GUESTMARK_SSH", local(tmp_path, mounts))
    assert "/var/tmp has no room for " in refused().reason


@pytest.mark.skipif(os.getuid() != 0, reason="mounting needs root")
def test_the_first_directory_with_room_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounts = "mount -t tmpfs -o noexec none /tmp; mount -t tmpfs -o size=64k none /var/tmp"
    mounts += "; mount -t tmpfs none /dev/shm"  # no agent is kept there
    setting = f"unset XDG_RUNTIME_DIR TMPDIR; {mounts}; HOME=/dev/shm"
    monkeypatch.setenv("GUESTMARK_SSH", local(tmp_path, setting))
    with start("ssh:lab1") as machine:
        scratch: str = machine.scratch  # type: ignore[attr-defined]
        assert scratch.startswith("/dev/shm/guestmark-agent-")
    assert not Path(scratch).exists()


@pytest.mark.skipif(os.getuid() != 0, reason="mounting needs root")
def test_where_no_further_file_may_be_made_the_next_directory_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = "mount -t tmpfs -o nr_inodes=3 none /tmp; touch /tmp/one; mount -t tmpfs none /var/tmp"
    monkeypatch.setenv("GUESTMARK_SSH", local(tmp_path, f"unset XDG_RUNTIME_DIR TMPDIR; {few}"))
    with start("ssh:lab1") as machine:
        scratch: str = machine.scratch  # type: ignore[attr-defined]
        assert scratch.startswith("/var/tmp/guestmark-agent-")
    mounts = f"for d in {EVERYWHERE}; do mount -t tmpfs -o nr_inodes=3 none $d; touch $d/one; done"
    monkeypatch.setenv("GUESTMARK_SSH", local(tmp_path, f"unset XDG_RUNTIME_DIR TMPDIR; {mounts}"))
    reason = refused().reason
    assert reason.startswith("lab1 has no place for the agent: /tmp has no room for a file; ")


@pytest.mark.skipif(os.getuid() != 0, reason="the namespace needs root")
@pytest.mark.parametrize(
    ("uname", "reason"),
    [
        ("echo Linux m68k", "there is no agent for m68k"),
        ("echo Darwin", "lab1 runs Darwin"),
        ("exit 127", "cannot find out what lab1 runs: uname is not in its PATH"),
    ],
)
def test_machines_without_an_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uname: str, reason: str
) -> None:
    program = tmp_path / "uname"
    program.write_text(f"#!/bin/sh\n{uname}\n")
    program.chmod(0o755)
    monkeypatch.setenv("GUESTMARK_SSH", local(tmp_path, f"PATH={tmp_path}:$PATH"))
    assert refused().reason == reason


@pytest.mark.skipif(os.getuid() != 0, reason="the namespace needs root")
def test_a_login_that_prints_something_is_understood(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(
        "GUESTMARK_SSH", local(tmp_path, "echo Welcome; printf '\\033]0;title\\007 no newline: '")
    )
    with start("ssh:lab1") as machine:
        assert machine.agent.hello().arch == os.uname().machine


@pytest.mark.long
@pytest.mark.skipif(os.getuid() != 0, reason="the namespace needs root")
def test_garbage_instead_of_an_agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    greeting, ready = "guestmark-ssh-1 Linux x86_64 no-boot", "guestmark-ready kept /tmp"
    lies = f"echo {greeting}; read -r script; echo {ready}; exec cat /dev/zero"
    monkeypatch.setenv("GUESTMARK_SSH", local(tmp_path, lies))
    platform = SshPlatform(Layer("ssh", dest="lab1"))
    failed = pytest.raises(MachineError, match=r"^the agent on lab1 failed .*garbage")
    with failed, platform.start(cell("ssh:lab1"), 20.0):
        raise AssertionError("a machine that lies was believed")


@pytest.mark.long
def test_an_endless_greeting_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "ssh"
    script.write_text("#!/bin/sh\nexec yes\n")
    script.chmod(0o755)
    monkeypatch.setenv("GUESTMARK_SSH", str(script))
    assert refused().reason == "lab1 never stops printing at login"


def test_endless_errors_instead_of_a_greeting_are_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "ssh"
    script.write_text("#!/bin/sh\nexec yes >&2\n")
    script.chmod(0o755)
    monkeypatch.setenv("GUESTMARK_SSH", str(script))
    assert refused().reason == "lab1 never stops printing at login"


def test_why_a_jump_host_or_proxy_failed_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "config"
    config.write_text("Host lab1\n ProxyCommand sh -c 'echo the gateway is closed today >&2'\n")
    monkeypatch.setenv("GUESTMARK_SSH", f"ssh -F {config}")
    assert refused().reason == (
        "lab1 cannot be reached, because its ProxyJump or ProxyCommand failed: the gateway is closed today"
    )


def test_a_machine_that_each_trial_restarts_may_be_off_before(server: Sshd) -> None:
    server.stop()
    platform = SshPlatform(Layer("ssh", dest="lab1"))
    assert isinstance(platform.probe(None, {"restart": "true"}), Usable)
    assert isinstance(platform.probe(None, {"ready": "true"}), Unusable)


def test_levels_that_make_a_machine_fresh_are_known_when_it_is_tried() -> None:
    """A domain that runs is tried as it runs, where that is asked for."""
    platforms: list[str] = []

    def probe(tried: list[Platform]) -> dict[str, Usable | Unusable]:
        platforms.extend(platform.name for platform in tried)
        return {platform.name: Usable(0.0) for platform in tried}

    find_unusable_platforms([cell("virsh:one/tcg", snapshot="none"), cell("ssh:lab1", restart="x y")], probe)
    assert platforms == ["virsh:one/tcg snapshot=none", "ssh:lab1 restart=x y"]


def sessions(server: Sshd) -> list[int]:
    """The processes of this server that hold a connection."""
    listed = subprocess.run(
        ["pgrep", "-P", str(server.process.pid)], capture_output=True, text=True, check=False
    ).stdout.split()
    return [int(pid) for pid in listed]


def clients(server: Sshd) -> list[int]:
    """The processes of ssh that are connected to it."""
    return matching(f"^ssh -F {server.config} ")


def running(mark: str) -> list[int]:
    """The workloads `sleep mark`."""
    return matching(f"^sleep {mark}$")


def matching(expression: str) -> list[int]:
    found = subprocess.run(["pgrep", "-f", expression], capture_output=True, text=True, check=False)
    return [int(pid) for pid in found.stdout.split()]


def left(server: Sshd) -> list[Path]:
    return list((server.directory / "scratch").iterdir())


def test_a_connection_that_breaks_fails_the_trial_in_one_line(server: Sshd) -> None:
    agents: list[int] = []

    def cut() -> None:
        with start("ssh:lab1") as machine:
            agents.append(machine.agent.hello().pid)
            for pid in sessions(server):
                os.kill(pid, signal.SIGKILL)
            machine.agent.exec(["true"], timeout_s=10)

    with pytest.raises(MachineError, match="the connection to lab1 was lost") as caught:
        cut()
    assert "\n" not in caught.value.message
    assert wait_until(lambda: not Path(f"/proc/{agents[0]}").exists(), 5)
    assert wait_until(lambda: not left(server), 5)


@contextlib.contextmanager
def measuring(server: Sshd, guestmark: CommandLine) -> Iterator[subprocess.Popen[bytes]]:
    """A run whose workload is running there; afterwards nothing of it may be left, and no traceback was shown."""
    guestmark.environment["GUESTMARK_SSH"] = server.client
    mark = f"300.{os.getpid()}{server.port}"
    once = ("--warmup", 0, "--null", "none", "--blocks", 1)
    process = guestmark.start("exec", "--on", "ssh:lab1", *once, "--", "sleep", mark)
    try:
        assert wait_until(lambda: process.poll() is not None or bool(running(mark)), 30)
        assert left(server)
        yield process
        assert wait_until(lambda: not running(mark), 10)
        assert wait_until(lambda: not left(server), 10)
        assert wait_until(lambda: not clients(server), 10)
        _, stderr = process.communicate(timeout=30)
        assert b"Traceback" not in stderr
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("victim", ["ssh", "guestmark"])
def test_sigkill_leaves_nothing_there(server: Sshd, guestmark: CommandLine, victim: str) -> None:
    with measuring(server, guestmark) as process:
        victims = [process.pid] if victim == "guestmark" else clients(server)
        assert victims
        for pid in victims:
            os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_leaves_nothing_there(server: Sshd, guestmark: CommandLine, times: int) -> None:
    """Once is an orderly end; twice does not wait for a machine that has stopped to answer."""
    with measuring(server, guestmark) as process:
        if times == 2:
            for pid in clients(server):
                os.kill(pid, signal.SIGSTOP)
        begin = time.monotonic()
        for _ in range(times):
            process.send_signal(signal.SIGINT)
            time.sleep(0.3)
        assert process.wait(30) == 130
        assert times == 1 or time.monotonic() - begin < STOP_S


def test_ssh_killed_while_the_agent_is_on_its_way(server: Sshd) -> None:
    """Killed in the middle of it: the shell there sees the end of its input and cleans up."""
    command = Session("lab1").command
    client = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert client.stdin is not None
    assert client.stdout is not None
    try:
        assert client.stdout.readline() == b"\n"
        assert client.stdout.readline().startswith(b"guestmark-ssh-1 Linux ")
        client.stdin.write(format_serve_script(name="guestmark-agent-half", size=1_000_000, digest="none"))
        client.stdin.flush()
        assert client.stdout.readline().startswith(b"guestmark-ready wanted ")
        client.stdin.write(bytes(500_000))
        client.stdin.flush()
        assert [path.name.rpartition("-")[0] for path in left(server)] == ["guestmark-agent-half"]
    finally:
        client.kill()
        client.wait()
    assert wait_until(lambda: not left(server), 5)


@pytest.mark.long
def test_a_machine_notices_that_nobody_is_there_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a cut its sshd would keep the session for two hours, and the agent the machine's lock."""
    with network(tmp_path, ["lab1"]) as reached:
        monkeypatch.setenv("GUESTMARK_SSH", reached.client)
        machine = reached.machines["lab1"]
        machine.keep_known()
        session = Session("lab1")
        session.open(time.monotonic() + 30)
        there = Path(session.directory)
        time.sleep(2)  # until nothing is on its way
        machine.plug(plugged=False)
        session.close()
        time.sleep(120)  # the client's kernel tries to tell of the end for 102 s
        assert there.exists()
        machine.plug(plugged=True)
        assert wait_until(lambda: not there.exists(), ALIVE_S + 30)


def test_factors_of_guests_are_refused(server: Sshd) -> None:
    with pytest.raises(GuestmarkError, match="does not support memory"), start("ssh:lab1", memory="1G"):
        pass
    assert cell("ssh:lab1").platform.is_elsewhere


@pytest.mark.parametrize(
    ("said", "final"),
    [
        ("lab1: Permission denied (publickey).", True),
        ("@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @", True),
        ("ssh: Could not resolve hostname lab1: Name or service not known", True),
        ("ssh: connect to host lab1 port 22: No route to host", False),
        ("ssh: connect to host lab1 port 22: Connection refused", False),
        ("kex_exchange_identification: read: Connection reset by peer", False),
        ("something else", False),
    ],
)
def test_what_cannot_get_better_is_told_from_what_can(said: str, final: bool) -> None:
    assert is_final(said) is final
