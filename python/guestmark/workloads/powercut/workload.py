"""The workload `powercut`: records are written in the machine, and every crash state of the log of it is judged."""

from __future__ import annotations

import contextlib
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from guestmark.agent.binary import PROGRAM
from guestmark.core.errors import MachineError, WorkloadError
from guestmark.core.findings import TARGET, Findings, Mount, Proof
from guestmark.core.model import Cell, Measurement, Plan
from guestmark.disks import logged
from guestmark.disks.spec import Role, disks_of
from guestmark.powercut import proof, recovery, sqlite, writelog
from guestmark.powercut.records import Method
from guestmark.workloads.powercut import metrics

if TYPE_CHECKING:
    from guestmark.agent.client import Agent
    from guestmark.disks.attached import AttachedDisk
    from guestmark.platforms.base import Machine

_DEEPEST = 2  # layers
_BARRIERS = frozenset({"ext3", "ext4"})  # that can be told not to flush


class PowercutWorkload:
    """Writes numbered records, then the same without barriers as a control, and judges both."""

    ONCE = True

    def __init__(self, plan: Plan, cell: Cell) -> None:
        self.facts = Findings()
        self.warnings: list[str] = []
        self._params = cell.workload.params
        self._method = Method(self._params["method"])
        self._limit_s = plan.policy.trial_limit_s
        self._stack = contextlib.ExitStack()
        self._disk: AttachedDisk | None = None

    @classmethod
    def impossible(cls, cell: Cell) -> str:
        """Why nothing can be proven on this host."""
        if len(cell.platform.layers) > _DEEPEST:
            return "writes are logged on this host, for a guest in it and for one inside that"
        if reason := logged.why_not():
            return f"no log of its writes can be taken: {reason}"
        filesystem = next(spec.filesystem for spec in disks_of(cell) if spec.role is Role.TARGET)
        if reason := recovery.why_not(filesystem):
            return f"{filesystem} is recovered by mounting it here: {reason}"
        return ""

    def prepare(self, machine: Machine) -> None:
        """Mounts the disk."""
        self._disk = next(disk for disk in machine.disks if disk.spec.role is Role.TARGET)
        self.facts.add(self._disk.facts, TARGET)
        self._disk.mount(machine.agent)
        self._stack.callback(self._unmount, machine.agent)

    def run(self, machine: Machine) -> list[Measurement]:
        """Writes, cuts the power, judges."""
        disk = self._disk
        assert disk is not None
        assert disk.image.logged is not None
        before = _counted(machine)
        begin = time.monotonic()
        part = self._write(machine.agent, disk, proof.PROOF)
        written = time.monotonic()
        after = _counted(machine)
        counted = None if before is None or after is None else after - before
        controlled = self._without_barriers(machine.agent, disk)
        found = proof.prove(
            proof.Request(
                files=disk.image.logged,
                filesystem=disk.spec.filesystem,
                form=disk.spec.format,
                location=disk.spec.location,
                method=self._method,
                states=int(self._params["states"]),
                written=part,
                control=controlled,
                counted=counted,
            )
        )
        found.run_s = written - begin
        self.facts.add(Proof(proven=found))
        return metrics.measured(found)

    def cleanup(self, machine: Machine) -> None:
        """Unmounts the disk."""
        self._stack.close()

    def _write(self, agent: Agent, disk: AttachedDisk, tag: proof.Tag) -> proof.Part:
        assert disk.image.logged is not None
        log = disk.image.logged.log
        start = writelog.count(log)
        method, count = self._method, int(self._params["records"])
        path = f"{disk.directory}/{tag.file}"
        argv = [
            PROGRAM, "records", "--method", method, "--tag", tag.text, "--first", "0", "--count", str(count),
            "--size", str(method.size), path,
        ]  # fmt: skip
        if method is Method.SQLITE:
            argv = sqlite.command(path, tag.text, count)
        done = agent.exec(argv, timeout_s=self._limit_s)
        if not done.ok:
            said = done.stderr.decode(errors="replace").strip()
            raise WorkloadError(f"the records cannot be written: {said or f'status {done.status}'}")
        return proof.Part(tag, count, start, writelog.count(log))

    def _without_barriers(self, agent: Agent, disk: AttachedDisk) -> proof.Part | None:
        """Once more on a disk that is mounted without barriers; None where the filesystem cannot be."""
        if disk.spec.filesystem not in _BARRIERS or disk.spec.mount != "defaults":
            return None
        self._unmount(agent)
        self._disk = replace(disk, spec=replace(disk.spec, mount="barrier=0"), facts=Mount())
        try:
            self._disk.mount(agent)
        except MachineError as error:
            self._disk = None
            self.warnings.append(f"without barriers it cannot be mounted: {error.message}")
            return None
        return self._write(agent, self._disk, proof.CONTROL)

    def _unmount(self, agent: Agent) -> None:
        if self._disk is not None:
            self._disk.umount(agent, drop_caches=False)
            self._disk = None


def _counted(machine: Machine) -> int | None:
    """Flushes by the hypervisor's own account; None where it has none."""
    if machine.query is None:
        return None
    stats = [entry for entry in machine.query("query-blockstats") if entry.get("device") == str(Role.TARGET)]
    return sum(int(entry["stats"]["flush_operations"]) for entry in stats) if stats else None
