"""Domains of libvirt: errors and addresses against its test driver, trials on domains that really boot."""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest

from guestmark.core.errors import AttestationError, GuestmarkError, MachineError, UsageError
from guestmark.core.factor import Factor
from guestmark.core.machine_facts import LibvirtMachine, RemoteGuestMachine
from guestmark.core.platform_spec import parse_platform
from guestmark.platforms import registry
from guestmark.platforms.base import Unusable, Usable
from guestmark.platforms.virsh.factors import SNAPSHOT, SSH
from guestmark.platforms.virsh.platform import find_ssh_options, make_transient, parse_addresses, run_virsh
from tests.framework.cells import cell
from tests.framework.command_line import CommandLine
from tests.framework.guests import start
from tests.framework.libvirt import Libvirt, libvirt
from tests.framework.processes import wait_until
from tests.framework.sshd import sshd

pytestmark = pytest.mark.skipif(shutil.which("virsh") is None, reason="install the package libvirt-clients")
_TEST_DRIVER = "virsh -c test:///default"  # libvirt's own, with one domain that runs nowhere


@pytest.fixture
def test_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GUESTMARK_VIRSH", _TEST_DRIVER)


@pytest.mark.parametrize(
    ("virsh", "domain", "reason", "hint"),
    [
        (_TEST_DRIVER, "nope", "nope is not a domain known to libvirt", "virsh list --all"),
        (
            "virsh -c qemu+unix:///session?socket=/nowhere",
            "test",
            "libvirt does not answer",
            "LIBVIRT_DEFAULT",
        ),
        ("/nowhere/virsh", "test", "/nowhere/virsh cannot be started", "libvirt-clients"),
    ],
)
def test_what_cannot_be_used_is_said(
    virsh: str, domain: str, reason: str, hint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GUESTMARK_VIRSH", virsh)
    found = registry.get_platform(f"virsh:{domain}").probe()
    assert isinstance(found, Unusable)
    assert reason in found.reason
    assert hint in found.hint


def test_a_domain_is_known_without_being_started(test_driver: None) -> None:
    assert isinstance(registry.get_platform("virsh:test").probe(), Usable)


@pytest.mark.parametrize(
    ("levels", "telling"),
    [
        ({}, "test is running, so trials cannot start it"),
        ({"snapshot": "clean"}, "test has no snapshot of that name"),
        ({"memory": "1G"}, "does not support memory"),
    ],
)
def test_what_cannot_be_made_fresh_is_left_alone(
    test_driver: None, levels: dict[str, str], telling: str
) -> None:
    with pytest.raises(GuestmarkError, match=telling), start("virsh:test", **levels):
        raise AssertionError("it was measured all the same")
    assert run_virsh("test", "domstate", "test").strip() == "running"


@pytest.mark.parametrize(
    ("factor", "level"), [(SNAPSHOT, "a b"), (SNAPSHOT, "--x"), (SSH, "-oProxyCommand=x"), (SSH, "")]
)
def test_levels_are_names(factor: Factor, level: str) -> None:
    with pytest.raises(ValueError, match="is not a"):
        factor.parse(level)


@pytest.mark.parametrize("name", ["virsh", "virsh:", "virsh:a b", "virsh:-x", "virsh:;reboot"])
def test_names_that_are_no_domains_are_refused(name: str) -> None:
    with pytest.raises(UsageError, match="is not a valid DOMAIN for virsh"):
        parse_platform(name)


def test_this_host_is_in_use_while_its_domains_are_measured() -> None:
    spec = parse_platform("virsh:lab1")
    assert spec.is_elsewhere
    assert spec.uses_this_host
    assert not parse_platform("ssh:lab1").uses_this_host


def test_the_address_is_asked_of_libvirt_where_ssh_has_none(
    test_driver: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "config"
    config.write_text("Host known\n HostName 192.0.2.7\n")
    monkeypatch.setenv("GUESTMARK_SSH", f"ssh -F {config}")
    found = find_ssh_options("me@test", "test")
    assert found == ("-o", "HostName=192.168.122.3", "-o", "HostKeyAlias=test")
    assert find_ssh_options("known", "test") == ()
    assert find_ssh_options("192.0.2.8", "test") == ()


def test_only_addresses_that_lead_there_are_taken() -> None:
    table = (
        " lo    00:00:00:00:00:00    ipv4    127.0.0.1/8\n -     -    ipv6    ::1/128\n"
        " eth0  52:54:00:12:34:56    ipv6    fe80::1/64\n eth0  -   ipv4   192.0.2.4/24\n"
    )
    assert parse_addresses(table) == ["192.0.2.4"]


def test_only_disks_that_keep_something_are_made_transient() -> None:
    definition = (
        "<domain><devices><disk type='file' device='disk'><source file='a'/></disk>"
        "<disk type='file' device='cdrom'><readonly/></disk><disk type='file'><transient/></disk>"
        "<disk type='file' device='disk'><readonly/></disk></devices></domain>"
    )
    disks = ElementTree.fromstring(make_transient(definition)).findall("devices/disk")
    assert [len(disk.findall("transient")) for disk in disks] == [1, 0, 1, 0]


@pytest.fixture(scope="module")
def lab() -> Iterator[Libvirt]:
    """A libvirt with the domain `one`, which is shut off, and `two`, which runs and has the snapshot `clean`."""
    with libvirt() as server, pytest.MonkeyPatch.context() as patch:
        patch.setenv("GUESTMARK_VIRSH", server.virsh)
        patch.setenv("GUESTMARK_SSH", server.ssh)
        for name in ("one", "two"):
            server.define(name)
        server.call("start", "two")
        reach = [*shlex.split(server.ssh), "-o", "ConnectTimeout=5", "two", "true"]
        assert wait_until(
            lambda: subprocess.run(reach, check=False, capture_output=True).returncode == 0, 120
        )
        server.call("snapshot-create-as", "two", "clean")
        yield server


@pytest.mark.long
def test_every_trial_starts_from_throw_away_disks(lab: Libvirt) -> None:
    disk = lab.directory / "one.qcow2"
    before, files = hashlib.sha256(disk.read_bytes()).digest(), set(lab.directory.iterdir())
    platform = registry.get_platform("virsh:one")
    boots = set()
    for _ in range(2):
        with platform.start(cell("virsh:one")) as machine:
            found = machine.attest()
            assert isinstance(found, LibvirtMachine)
            boots.add(found.boot_id)
            assert (found.libvirt.domain, found.libvirt.accelerator) == ("one", "qemu")
            assert [(each.name, each.keeps) for each in found.libvirt.disks] == [("vda", False)]
            assert found.libvirt.known_by == "its UUID"
            assert found.fresh == "a start from throw-away disks"
            assert not found.is_this_host
            written = machine.agent.exec(
                ["dd", "if=/dev/zero", "of=/var/tmp/left", "bs=1k", "count=8"], timeout_s=60
            )
            assert written.status == 0
            machine.agent.sync()
            assert lab.state("one") == "running"
        assert lab.state("one") == "shut off"
    assert len(boots) == 2
    assert hashlib.sha256(disk.read_bytes()).digest() == before
    assert set(lab.directory.iterdir()) - files <= {lab.directory / "one.log"}


@pytest.mark.long
def test_a_snapshot_that_runs_is_gone_back_to(lab: Libvirt) -> None:
    platform = registry.get_platform("virsh:two")
    for _ in range(2):
        with platform.start(cell("virsh:two", snapshot="clean")) as machine:
            found = machine.attest()
            assert isinstance(found, LibvirtMachine)
            assert found.fresh == "going back to its snapshot clean"
            assert [each.keeps for each in found.libvirt.disks] == [True]
            left = machine.agent.exec(["sh", "-c", "echo /var/tmp/*; echo > /var/tmp/left"], timeout_s=60)
            assert "left" not in left.stdout.decode()
    assert lab.state("two") == "running"  # as it was before


@pytest.mark.long
def test_a_manager_that_does_not_go_back_is_found_out(
    lab: Libvirt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lying = tmp_path / "virsh"
    lying.write_text(f'#!/bin/sh\ncase "$*" in *snapshot-revert*) exit 0; esac\nexec {lab.virsh} "$@"\n')
    lying.chmod(0o755)
    platform = registry.get_platform("virsh:two")
    with platform.start(cell("virsh:two", snapshot="clean")):
        pass
    monkeypatch.setenv("GUESTMARK_VIRSH", str(lying))
    with (
        pytest.raises(AttestationError, match="two is not fresh"),
        platform.start(cell("virsh:two", snapshot="clean")),
    ):
        raise AssertionError("it was measured all the same")


@pytest.mark.long
def test_a_domain_is_measured_as_it_runs_when_that_is_wanted(lab: Libvirt) -> None:
    with start("virsh:two", snapshot="none") as machine:
        found = machine.attest()
    assert isinstance(found, LibvirtMachine)
    assert found.fresh == ""
    assert lab.state("two") == "running"


@pytest.mark.long
def test_another_machine_that_answers_is_found_out(
    lab: Libvirt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with sshd(tmp_path) as server:
        monkeypatch.setenv("GUESTMARK_SSH", server.client)
        with (
            start("virsh:two", snapshot="none") as machine,
            pytest.raises(AttestationError, match="is not the domain two"),
        ):
            machine.attest()


@pytest.mark.long
def test_a_domain_that_ends_while_it_starts_is_not_waited_for(
    lab: Libvirt, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready = f"{lab.virsh} destroy one"
    with pytest.raises(MachineError, match="one has ended"), start("virsh:one", ready=ready):
        raise AssertionError("it was measured all the same")
    assert lab.state("one") == "shut off"


@pytest.fixture(scope="module")
def deep() -> Iterator[Libvirt]:
    """A libvirt with the domain `deep`, which is shut off and can have guests."""
    with libvirt(with_guests=True) as server, pytest.MonkeyPatch.context() as patch:
        patch.setenv("GUESTMARK_VIRSH", server.virsh)
        patch.setenv("GUESTMARK_SSH", server.ssh)
        server.define("deep")
        yield server


@pytest.mark.long
@pytest.mark.parametrize("inner", ["kvm", "uml"])
def test_guests_in_a_domain(deep: Libvirt, inner: str) -> None:
    """With `tcg` too; that takes minutes where the domain itself is emulated."""
    with start(f"virsh:deep/{inner}", memory="256M") as guest:
        found = guest.attest()
        assert isinstance(found, RemoteGuestMachine)
        assert isinstance(found.on, LibvirtMachine)
        assert (found.on.libvirt.domain, found.on.fresh) == ("deep", "a start from throw-away disks")
        there = guest.agent.exec(["cat", "/etc/machine-id"], timeout_s=60)
        assert there.stdout == b"0123456789abcdef0123456789abcdef\n"  # its root is the domain's
    assert deep.state("deep") == "shut off"


@pytest.mark.long
def test_nothing_runs_after_a_kill(lab: Libvirt, guestmark: CommandLine) -> None:
    guestmark.environment |= {"GUESTMARK_VIRSH": lab.virsh, "GUESTMARK_SSH": lab.ssh}
    process = guestmark.start("exec", "--on", "virsh:one", "--blocks", 1, "--", "sleep", "100")
    assert wait_until(lambda: lab.state("one") == "running", 60)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert wait_until(lambda: lab.state("one") == "shut off", 30)


@pytest.mark.long
def test_a_domain_is_compared_with_the_host(lab: Libvirt, guestmark: CommandLine) -> None:
    guestmark.environment |= {"GUESTMARK_VIRSH": lab.virsh, "GUESTMARK_SSH": lab.ssh}
    done = guestmark(
        "exec", "--on", "host,virsh:one,virsh:two", "--set", "snapshot=throw-away", "--blocks", 1, "--warmup", 0,
        "--json", "-", "--", "true", timeout=180,
    )  # fmt: skip
    # `two` runs, so it cannot be started afresh: its trials fail, and the others are measured.
    assert done.status == 1, done.stderr
    assert "two is running, so trials cannot start it" in done.stdout + done.stderr
    trials = [
        trial
        for each in done.document()["cells"]
        if each["id"].startswith("virsh:one")
        for trial in each["trials"]
    ]
    assert [trial["attestation"]["fresh"] for trial in trials] == ["a start from throw-away disks"]
