"""The workload `powercut`: records are written in the machine, and every crash state of the log of it is judged."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from guestmark.agent.binary import PROGRAM
from guestmark.agent.results import CallError
from guestmark.core.errors import AgentError, MachineError, PlatformUnusableError, WorkloadError
from guestmark.core.findings import TARGET, Findings, Mount, Proof
from guestmark.core.model import Cell, Measurement, Plan
from guestmark.disks import logged
from guestmark.powercut import proof, recovery, sqlite, writelog
from guestmark.powercut.records import Method
from guestmark.setting.disk import DiskSpec, Role, disks_of
from guestmark.workloads.oltp.databases.base import Account
from guestmark.workloads.oltp.databases.kinds import KINDS
from guestmark.workloads.powercut import metrics
from guestmark.workloads.powercut.databases import Rows

if TYPE_CHECKING:
    from guestmark.agent.client import Agent
    from guestmark.disks.attached import AttachedDisk
    from guestmark.platforms.base import Machine, Platform

_DEEPEST = 2  # layers
_FULL_BYTES = 1 << 20
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
        self._cell = cell
        account = Account.of(plan.context.get("uid", 0), plan.context.get("gid", 0))
        self._rows = Rows(self._method, account) if self._method.served else None
        self._disk: AttachedDisk | None = None

    @classmethod
    def impossible(cls, cell: Cell) -> str:
        """Why nothing can be proven on this host."""
        target = next(spec for spec in disks_of(cell) if spec.role is Role.TARGET)
        if why := _no_log(target):
            return why
        if len(cell.platform.layers) > _DEEPEST:
            return "writes are logged on this host, for a guest in it and for one inside that"
        if reason := logged.why_not():
            return f"no log of its writes can be taken: {reason}"
        filesystem = target.filesystem
        served = Method(cell.workload.params["method"]).served
        if reason := recovery.why_not(filesystem, mounted=served):
            return f"{filesystem} is recovered by mounting it here: {reason}"
        if served:
            try:
                KINDS[cell.workload.params["method"]]()
            except PlatformUnusableError as error:
                return f"{error.message} ({error.hint})"
        return ""

    @contextlib.contextmanager
    def machine(self, platform: Platform) -> Iterator[Machine]:
        """The platform's machine; for a database server with a data directory on its disk."""
        cell = self._cell
        if self._rows is not None:
            tree = str(self._rows.prepared().tree)
            disks = [{**disk, "tree": tree} for disk in self._params["disks"]]
            cell = replace(cell, workload=replace(cell.workload, params={**self._params, "disks": disks}))
        with platform.start(cell) as machine:
            yield machine

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
        with contextlib.ExitStack() as serving:
            if self._rows is not None:
                on_host = self._cell.platform.is_this_host
                serving.enter_context(self._rows.serving(machine.agent, disk.directory, on_host=on_host))
            part = self._write(machine.agent, disk, proof.PROOF)
            written = time.monotonic()
            after = _counted(machine)
            counted = None if before is None or after is None else after - before
            if self._rows is not None:
                controlled: proof.Part | None = self._write(machine.agent, disk, proof.CONTROL)
            else:
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
                reader=self._rows,
                unsafe=self._rows.unsafe if self._rows else "barrier=0",
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
        if self._rows is not None:
            self._rows.commit(tag.text, count, unsafe=tag is proof.CONTROL)
            return proof.Part(tag, count, start, writelog.count(log))
        path = f"{disk.directory}/{tag.file}"
        argv = [
            PROGRAM, "records", "--method", method, "--tag", tag.text, "--first", "0", "--count", str(count),
            "--size", str(method.size), path,
        ]  # fmt: skip
        if method is Method.SQLITE:
            argv = sqlite.command(path, tag.text, count)
        try:
            done = agent.exec(argv, timeout_s=self._limit_s)
        except CallError:
            raise
        except AgentError as error:  # what hangs in a flush cannot be killed, and the agent waits for its end
            raise self._not_written(disk, error.message, late=True) from error
        if not done.ok:
            said = done.stderr.decode(errors="replace").strip()
            raise self._not_written(disk, said or f"status {done.status}", late=done.timed_out)
        return proof.Part(tag, count, start, writelog.count(log))

    def _not_written(self, disk: AttachedDisk, said: str, *, late: bool) -> WorkloadError:
        """Why the records were not written; nothing hangs in the disk any more after it."""
        files = disk.image.logged
        assert files is not None
        there = os.statvfs(files.log.parent)
        if there.f_bavail * there.f_frsize < _FULL_BYTES:
            said, hint = (
                f"{disk.spec.location} is full, where the image and the log of its writes are",
                "choose another directory with --set location=DIRECTORY, or fewer --records",
            )
        elif late:
            said, hint = f"not done within {self._limit_s:g} s: a flush hangs", "see the console"
        else:
            hint = "see the console"
        if late and files.kill is not None:
            self._disk = None  # it would hang in unmounting, too
            files.kill()
        return WorkloadError(f"the records cannot be written: {said}", hint=hint)

    def _without_barriers(self, agent: Agent, disk: AttachedDisk) -> proof.Part | None:
        """Once more on a disk that is mounted without barriers; None where the filesystem cannot be."""
        if disk.spec.filesystem not in _BARRIERS or disk.spec.mount_options:
            return None
        self._unmount(agent)
        self._disk = replace(disk, spec=disk.spec.with_levels(mount="barrier=0"), facts=Mount())
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


def _no_log(target: DiskSpec) -> str:
    """Why there is no log of what is written to a target; empty when there can be one."""
    if target.shared:
        return f"{target.filesystem} is a directory of this host, whose own disk has no log of writes"
    if target.overwritten:
        return f"{target.location} is written to directly, and writes are logged of images only"
    return ""


def _counted(machine: Machine) -> int | None:
    """Flushes by the hypervisor's own account; None where it has none."""
    if machine.query is None:
        return None
    stats = [entry for entry in machine.query("query-blockstats") if entry.get("device") == str(Role.TARGET)]
    return sum(int(entry["stats"]["flush_operations"]) for entry in stats) if stats else None
