"""A factor that one module of another distribution defines reaches the guest, is attested, and is known everywhere."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.framework.distributions import brought
from tests.framework.marks import long

MODULE = """
from collections.abc import Iterator

from guestmark.core.factor import Machine, one_of
from guestmark.setting.base import AttestedDrive, Check, DiskSetting, pass_level_as
from guestmark.setting.machine import MachineSetting


def _seen(level: int, drive: AttestedDrive) -> Iterator[Check]:
    yield Check("preferred transfer", level, int(drive.in_guest("queue/optimal_io_size")) + {error})


TRANSFER = DiskSetting(
    "transfer", "bytes that the disk says it likes to move at once", one_of("32768", "65536"),
    read=int, machines=Machine.QEMU, device=pass_level_as("opt_io_size"), attest=_seen,
)
CALLED = MachineSetting(
    "called", "a name for the guest", str.strip, read=str, machines=Machine.QEMU,
    qemu=lambda name, _architecture: ("-name", name), kernel=lambda name: (f"called={{name}}",),
)
"""
START = """
import sys
from guestmark.core.errors import AttestationError
from guestmark.core.platform_spec import PlatformSpec
from guestmark.core.registry import factors
from guestmark.engine import proofs
from guestmark.plan.matrix import expand_workload
from guestmark.core.model import WorkloadSpec
from tests.framework.guests import start_cell

levels = {"transfer": ("32768", "65536"), "size": ("16M",), "filesystem": ("ext4",), "called": ("me",)}
cells = expand_workload(WorkloadSpec("test"), (PlatformSpec.read("tcg"),), levels).cells
print([cell.id for cell in cells if not cell.null_of])
print("kinds of disks:", len({proofs.find_proof_kind(cell) for cell in cells if not cell.null_of}))
with start_cell(cells[1]) as machine:
    given = [word for word in machine.command_line if "opt_io_size" in word]
    print(machine.agent.read_file("/sys/block/vda/queue/optimal_io_size").decode().strip(), len(given))
    booted = machine.agent.read_file("/proc/cmdline").decode()
    print("-name me" in " ".join(machine.command_line), "called=me" in booted)
    try:
        machine.attest()
        print("attested")
    except AttestationError as error:
        print(error.message)
"""


@pytest.mark.parametrize(
    ("error", "said"),
    [
        long(0, "attested"),
        (1, "the target disk's preferred transfer is not what was asked for: asked for 65536, found 65537"),
    ],
)
def test_a_factor_of_another_distribution_reaches_a_guest(error: int, said: str, tmp_path: Path) -> None:
    environment = {**os.environ, **brought(tmp_path, "transfers", MODULE.format(error=error))}
    done = subprocess.run(
        [sys.executable, "-c", START],
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.stdout.splitlines() == [
        "['tcg transfer=32768 size=16M filesystem=ext4 called=me', "
        "'tcg transfer=65536 size=16M filesystem=ext4 called=me']",
        "kinds of disks: 2",
        "65536 1",
        "True True",
        said,
    ], done.stderr
