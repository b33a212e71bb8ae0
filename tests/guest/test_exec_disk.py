"""A command runs on the disk that its row names, whatever starts the machine."""

import pytest

from guestmark.core.findings import WorkingDirectory
from guestmark.core.model import Cell, WorkloadSpec
from guestmark.core.platform_spec import PlatformSpec
from tests.framework.guests import started

WRITES = "head -c 1048576 /dev/urandom > file && sync file && stat -c %d . && pwd"
SIZES = {"xfs": "320M", "btrfs": "128M"}


def on(platform: str, *argv: str, **factors: str) -> Cell:
    return Cell("test", WorkloadSpec("exec", {"argv": list(argv)}), PlatformSpec.read(platform), factors)


@pytest.mark.parametrize(("platform", "filesystem"), [("tcg", "ext4"), ("tcg", "xfs"), ("tcg", "9p")])
def test_a_command_runs_on_its_disk(platform: str, filesystem: str) -> None:
    factors = {"filesystem": filesystem}
    if filesystem != "9p":
        factors |= {"size": SIZES.get(filesystem, "64M"), "cache": "none", "location": "/var/tmp"}
    with started(on(platform, "sh", "-c", WRITES, **factors)) as (machine, workload):
        workload.prepare(machine)
        workload.run(machine)
        (disk,) = machine.disks
        written = machine.agent.read_file(f"{disk.directory}/work/file")
        found = workload.facts.facts().of(WorkingDirectory)
    assert len(written) == 1 << 20
    assert found is not None
    assert (found.filesystem, found.source) == (filesystem, disk.device)
    assert found.path == f"{disk.directory}/work"
