"""Directories of the host in which a guest's data lie: virtiofs and 9p under QEMU, hostfs under User-Mode Linux."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import replace

import pytest

from guestmark.core.errors import AttestationError, UsageError
from guestmark.core.findings import Durability, Flushes
from guestmark.core.machine_facts import GuestMachine
from guestmark.disks.preflight import explain_impossible_disk
from guestmark.platforms.process import SupervisedProcess
from guestmark.platforms.qemu import virtiofs
from guestmark.setting.disk import Disks
from guestmark.workloads import base as workloads
from tests.framework.cells import cell_of
from tests.framework.guests import prepared
from tests.framework.known import known

QEMU: dict[str, Mapping[str, str]] = {
    "virtiofs": {"filesystem": "virtiofs"},
    "virtiofs, never cached": {"filesystem": "virtiofs", "share_cache": "never"},
    "9p": {"filesystem": "9p"},
    "9p, loose": {"filesystem": "9p", "share_cache": "loose", "mount": "msize=262144"},
    "9p, mapped": {"filesystem": "9p", "share_cache": "mmap", "security_model": "mapped-file"},
}


def written(platform: str, factors: Mapping[str, str]) -> tuple[GuestMachine, Flushes, str]:
    """What a guest and the flushes of a file of 4 MB in such a directory are said to be, and how it was mounted."""
    cell = cell_of(platform, "filewrite", {"location": "/var/tmp", **factors}, amount="4M", content="random")
    with prepared(cell) as (machine, workload):
        facts = machine.attest()
        assert isinstance(facts, GuestMachine)
        values = {measurement.metric.name: measurement.value for measurement in workload.run(machine)}
        assert values["throughput"] > 0
        assert values["host_written_bytes"] >= 4 << 20
        assert values["vmm_cpu_s"] > 0
        found = workload.facts.facts()
        return facts, known(found.find_fact(Flushes)), str(found.kept["target_mount"])


@pytest.mark.long
@pytest.mark.parametrize("factors", QEMU.values(), ids=QEMU)
def test_a_directory_of_the_host_holds_the_data_of_a_qemu_guest(factors: Mapping[str, str]) -> None:
    facts, flushes, mount = written("tcg", factors)
    served = str(known(known(facts.disks)["target"].served))
    assert served.startswith(factors["filesystem"])
    assert factors.get("share_cache", "cache=") in served
    assert factors.get("security_model", "") in served
    assert factors.get("mount", "") in mount
    assert flushes.durability_word is Durability.REACHED, flushes.why
    assert known(facts.confined).protects_files


def test_a_directory_of_the_host_holds_the_data_of_uml() -> None:
    facts, flushes, mount = written("uml", {"filesystem": "hostfs"})
    assert known(known(facts.disks)["target"].served) == "hostfs"
    assert "/var/tmp/guestmark-" in mount
    assert flushes.durability_word is Durability.REACHED, flushes.why
    assert known(facts.confined).protects_files


@pytest.mark.long
def test_a_daemon_that_was_told_something_else_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    started = virtiofs.serve_directory

    def otherwise(
        hypervisor: SupervisedProcess, share: virtiofs.Share, bus: str
    ) -> AbstractContextManager[list[str]]:
        return started(hypervisor, replace(share, cache="always"), bus)

    monkeypatch.setattr(virtiofs, "serve_directory", otherwise)
    with pytest.raises(AttestationError, match="never"):
        written("tcg", {"filesystem": "virtiofs", "share_cache": "never"})


@pytest.mark.parametrize(
    ("factors", "said"),
    [
        ({"filesystem": "virtiofs", "format": "qcow2"}, "has no format"),
        ({"filesystem": "virtiofs", "share_cache": "loose"}, "virtiofs does not support share_cache=loose"),
        ({"filesystem": "virtiofs", "security_model": "none"}, "security_model applies to 9p"),
        ({"filesystem": "ext4", "share_cache": "auto"}, "applies to directories of the host"),
    ],
)
def test_what_a_directory_does_not_have_is_refused(factors: Mapping[str, str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        cell_of("tcg", "filewrite", factors, amount="4M").view(Disks)


@pytest.mark.parametrize(
    ("platform", "filesystem", "why"),
    [
        ("uml", "virtiofs", "uml does not support virtiofs"),
        ("tcg", "hostfs", "tcg does not support hostfs"),
        ("tcg/kvm", "9p", "a nested guest cannot mount 9p"),
        ("tcg", "9p", ""),
    ],
)
def test_cells_whose_machine_cannot_mount_it_are_left_out(platform: str, filesystem: str, why: str) -> None:
    found = explain_impossible_disk(cell_of(platform, "filewrite", {"filesystem": filesystem}, amount="4M"))
    assert why in found
    assert bool(found) == bool(why)


def test_the_power_is_not_cut_of_a_directory() -> None:
    cell = cell_of("tcg", "powercut", {"filesystem": "9p"})
    assert "are not logged" in workloads.find_trial_class(cell.workload.name).impossible(cell)
