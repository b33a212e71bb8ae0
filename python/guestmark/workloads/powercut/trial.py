"""The trial of `powercut`: writes records in the machine, and judges every crash state of the log of its writes."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from guestmark.agent.binary import PROGRAM
from guestmark.agent.client import Agent
from guestmark.agent.results import CallError
from guestmark.core import regex
from guestmark.core.cause import Cause, classify_errno
from guestmark.core.errors import (
    AgentError,
    GuestmarkError,
    Interrupted,
    MachineError,
    PlatformUnusableError,
    UsageError,
    WorkloadError,
)
from guestmark.core.findings import TARGET, Durability, Explanation, Mount, Proof, Proven, SecondLog
from guestmark.core.metric import Measurement
from guestmark.core.model import Cell, Plan
from guestmark.core.units import format_count
from guestmark.disks import logged
from guestmark.disks.attached import AttachedDisk
from guestmark.disks.traffic import read_block_columns
from guestmark.platforms.base import Machine, Platform
from guestmark.powercut import check_proof, proof, records, recovery, writelog
from guestmark.powercut.calls import AddedSyncs, SyncPoint
from guestmark.powercut.cures import CureSearch, TriedSyncs
from guestmark.powercut.records import Method
from guestmark.powercut.survey import INTERRUPTED, SurveyLimits
from guestmark.setting.disk import Disks, DiskSpec, Role
from guestmark.setting.drive import Bus
from guestmark.workloads import powercut
from guestmark.workloads.common.program import check_command
from guestmark.workloads.oltp.databases import KINDS
from guestmark.workloads.oltp.databases.base import Account
from guestmark.workloads.powercut.command import (
    AcknowledgingProgram,
    Program,
    SyncingProgram,
    has_further_lines,
)
from guestmark.workloads.powercut.databases import Rows

_ASKED_S = 20.0
_DEEPEST = 2  # layers
# If no record was written in this last share of the time limit, a flush hangs; otherwise records are just slow.
_HANGS_SHARE = 0.25
_STAT_FLUSHES = 15  # index of the field in a disk's statistics
# Shares of the remaining time: for the first log while nothing is lost, and once something is; for each log that
# confirms a loss; and for explaining it.
_WHOLE_SHARE, _FIRST_SHARE, _LATER_SHARE, _EXPLAIN_SHARE = 0.75, 0.4, 0.6, 0.2
_ENOUGH_AGAIN = 5  # failing states of a further log
_BARRIERS = frozenset({"ext3", "ext4"})  # filesystems that can be mounted without barriers


class PowercutTrial(powercut.PowercutWorkload):
    """Writes numbered records, then does the same without barriers as a control, and judges both."""

    ONCE = True

    def __init__(self, plan: Plan, cell: Cell) -> None:
        super().__init__(plan, cell)
        self._method = Method(self.params.method)
        self._seed = plan.policy.seed or 0
        self._platform: Platform | None = None
        self._began = time.monotonic()
        self._confirms = False  # whether a second log is judged, to confirm a loss
        self._stopped = False  # whether the user has interrupted the trial
        # Places where a sync would prevent the last log's losses.
        self._points: list[SyncPoint] = []
        # After this many failing states a further log need not be judged to its end.
        self._enough: int | None = None
        self._explains = True
        account = Account.choose_account(plan.context.uid or 0, plan.context.gid or 0)
        self._account = account
        self._rows: Rows | None = None
        if self._method.is_served:
            self._rows = self._make_rows(self.params.settings)
        self._command = self._make_program(plan)
        self._disk: AttachedDisk | None = None

    def _make_program(self, plan: Plan) -> AcknowledgingProgram | SyncingProgram | None:
        """Returns the user's program; None for methods that do not run one."""
        params, caller = self.params, plan.context.caller
        if not self._method.is_program:
            return None
        command = list(params.command)
        # It runs on the disk, but the user named the program relative to the current directory.
        if os.sep in command[0]:
            command[0] = os.path.join(caller.cwd, command[0])
        if self._method is Method.COMMAND:
            return AcknowledgingProgram(command, params.acknowledge, self._add_remark)
        # Elsewhere the agent already has the right identity.
        guest = self.cell.platform.is_guest
        user = {"uid": caller.uid, "gid": caller.gid, "groups": caller.groups} if guest else {}
        return SyncingProgram(
            Program(
                command, {**caller.env, **params.env}, params.before,
                params.files, user, params.cwd, list(params.statuses),
            )
        )  # fmt: skip

    def _add_remark(self, said: str) -> None:
        """Reports a remark at once, as the program may run for long, and keeps it."""
        self.note(f"{self.cell.id}: {said}")
        self.warnings.append(said)

    @classmethod
    def check_request(cls, plan: Plan, cells: Sequence[Cell]) -> None:
        """Raises `UsageError` if there is no such command, or if `acknowledge` is not a regular expression."""
        here = plan.context.caller
        for pattern in {cls.params_of(cell.workload).acknowledge for cell in cells}:
            try:
                regex.read_groups(pattern)
            except regex.PatternError as error:
                raise UsageError(
                    f"--acknowledge {pattern!r} is not a regular expression: {error}",
                    hint="e.g. --acknowledge '^ok '",
                ) from error
        commands = {tuple(cls.params_of(cell.workload).command) for cell in cells if cell.shares_root}
        for argv in sorted(filter(None, commands)):
            check_command(argv, env=here.env, cwd=here.cwd, typed=plan.context.typed)

    @classmethod
    def impossible(cls, cell: Cell) -> str:
        """Returns why nothing can be proven on this host; empty if it can."""
        target = cell.view(Disks).target
        params = cls.params_of(cell.workload)
        if why := _explain_no_log(target) or _explain_missing_program(params.needs, params.package):
            return why
        if len(cell.platform.layers) > _DEEPEST:
            return "writes can be logged for at most two layers of guests on this host"
        if reason := logged.explain_no_log():
            return f"its writes cannot be logged: {reason}"
        filesystem = target.filesystem
        method = Method(params.method)
        served = method.is_served
        if reason := recovery.explain_not_recoverable(filesystem, mounted=served or method.is_program):
            return f"{filesystem} has to be mounted here to recover it: {reason}"
        if served:
            try:
                KINDS[params.method]()
            except PlatformUnusableError as error:
                return f"{error.message} ({error.hint})"
        return ""

    @contextlib.contextmanager
    def machine(self, platform: Platform) -> Iterator[Machine]:
        """Starts the platform's machine; for a database server, with a data directory on its disk."""
        self._platform = platform
        with self._start_machine(platform) as machine:
            yield machine

    @contextlib.contextmanager
    def _start_machine(self, platform: Platform) -> Iterator[Machine]:
        cell = self.cell
        if self._rows is not None:
            tree = str(self._rows.find_prepared().tree)
            disks = [{**disk, "tree": tree} for disk in self.params.disks]
            cell = replace(
                cell, workload=replace(cell.workload, params={**cell.workload.params, "disks": disks})
            )
        with platform.start(cell) as machine:
            yield machine

    def prepare(self, machine: Machine) -> None:
        """Mounts the disk."""
        self._mount_disk(machine)

    def run(self, machine: Machine) -> list[Measurement]:
        """Writes records, cuts the power and judges; confirms a loss on another machine."""
        found = self._prove_disk(machine)
        # `--prove`, which proves the disks of other cells, reports this itself.
        found.of_row = True
        if found.word.is_loss and found.losing and found.stopped != INTERRUPTED:
            self._confirm_loss(found)
        self.facts.add(Proof(proven=found))
        return powercut.to_measurements(found)

    def _confirm_loss(self, found: Proven) -> None:
        """Judges a second log and explains the loss; if the user interrupts this, the findings so far are kept."""
        try:
            explained, found.again = self._record_again()
            if explained is not None:
                found.explanation = self._try_cures(explained, found)
            elif self._rows is not None and self.params.settings and found.again.losing and self._has_time:
                found.explanation = self._try_default_settings(found)
        except Interrupted:
            found.stopped = INTERRUPTED
        if found.again is not None and found.again.word != found.word:
            found.word = Durability.UNKNOWN
            found.why = (
                f"one log loses records, but another does not confirm it ({found.again.why}); {found.why}"
            )

    def _prove_disk(self, machine: Machine) -> Proven:
        """Writes records, cuts the power and judges; unmounts the disk."""
        disk = self._disk
        assert disk is not None
        assert disk.image.logged is not None
        log = disk.image.logged.log
        before = _count_flushes(machine, disk)
        begin = time.monotonic()
        controlled: proof.LogPart | None
        if self._rows is not None:
            on_host = self.cell.platform.is_this_host
            with self._rows.serve_rows(machine.agent, disk.directory, on_host=on_host):
                part = self._write_records(machine.agent, disk, proof.PROOF)
                written, after = time.monotonic(), _count_flushes(machine, disk)
                # The control is written to the same log, so that one recording serves both.
                controlled = self._write_records(machine.agent, disk, proof.CONTROL)
                self._rows.stop_server()
            settled = self._wait_for_settled_log(machine.agent, disk, log)
        else:
            part = self._write_records(machine.agent, disk, proof.PROOF)
            written, after = time.monotonic(), _count_flushes(machine, disk)
            settled = self._wait_for_settled_log(machine.agent, disk, log)
            controlled = None if self._command else self._write_without_barriers(machine.agent, disk)
        if isinstance(self._command, AcknowledgingProgram):
            found, self._points = self._check_log(
                self._command, disk, replace(part, settled=settled), after.subtract_reading(before)
            )
            found.run_s = written - begin
            return found
        syncing = self._command if isinstance(self._command, SyncingProgram) else None
        followed = syncing.promises if syncing is not None else None
        # A program that promises nothing can lose nothing.
        if followed is not None and not followed.calls:
            nothing = _make_empty_proof(followed.elsewhere, self._method.description)
            nothing.unsynced, nothing.rebuilt = followed.unsynced, followed.rebuilt
            return nothing
        found = proof.prove_durability(
            proof.ProofRequest(
                files=disk.image.logged,
                filesystem=disk.spec.filesystem,
                form=disk.spec.format,
                location=disk.spec.location,
                method=self._method,
                states=self.params.states,
                seed=self._seed,
                written=replace(part, settled=settled),
                control=controlled,
                reader=syncing or self._rows,
                unsafe=self._rows.unsafe_setting if self._rows else "barrier=0",
                counts=after.subtract_reading(before),
                unfollowed=followed.elsewhere if followed is not None else "",
            )
        )
        if followed is not None:
            found.syncs, found.unsynced, found.rebuilt = True, followed.unsynced, followed.rebuilt
            found.syncs_cut_short = followed.was_stopped
            # Data that were never synced may be lost without breaking a promise, so the proof covers a part only.
            if found.unsynced and found.word is Durability.PROVEN:
                found.word = Durability.SYNCED_PART_PROVEN
        found.run_s = written - begin
        return found

    def _check_log(
        self,
        program: AcknowledgingProgram,
        disk: AttachedDisk,
        part: proof.LogPart,
        counts: proof.FlushCounts,
    ) -> tuple[Proven, list[SyncPoint]]:
        """Judges a log by the user's check; a second log, which confirms a loss, only as far as needed."""
        assert disk.image.logged is not None
        deadline = failed_deadline = explain_s = None
        # A part of the time is reserved for the second log, which confirms a loss.
        if self.share_s is not None:
            now = time.monotonic()
            left_s = self.share_s - (now - self._began)
            whole, failed = (_LATER_SHARE, _LATER_SHARE) if self._confirms else (_WHOLE_SHARE, _FIRST_SHARE)
            deadline, failed_deadline = now + left_s * whole, now + left_s * failed
            explain_s = left_s * _EXPLAIN_SHARE
        request = proof.ProofRequest(
            files=disk.image.logged, filesystem=disk.spec.filesystem, form=disk.spec.format,
            location=disk.spec.location, method=self._method, states=self.params.states, seed=self._seed, written=part,
            counts=counts,
        )  # fmt: skip
        return check_proof.prove_by_check(
            request,
            check_proof.CheckRequest(
                command=self.params.check, lines=program.lines, limit_s=self.params.check_limit_s,
                limits=SurveyLimits(deadline, self._enough, failed_deadline), confirms=self._confirms, tell=self.tell,
                calls=program.calls if self._explains else None, explain_s=explain_s,
            ),
        )  # fmt: skip

    def _wait_for_settled_log(self, agent: Agent, disk: AttachedDisk, log: Path) -> int:
        """Returns the log's length once the machine, and the machines around it, have written everything."""
        if self._disk is not None:
            self._check_log_room(self._disk)
        self._unmount_disk(agent)
        disk.image.flush()
        return writelog.count_requests(log)

    def _record_again(self) -> tuple[Explanation | None, SecondLog]:
        """Records a log on another machine, as a loss may be a fault of one recording.

        Returns the explanation of the loss, and the result of the second log.
        """
        # Other states are drawn from the second log than from the first.
        self._seed += 1
        self._confirms, self._enough = True, _ENOUGH_AGAIN
        self.tell("writing a second log, to confirm the loss")
        try:
            if isinstance(self._command, AcknowledgingProgram):
                self._command.follow_program(AddedSyncs())
            found = self._prove_on_fresh_machine()
            self._stopped = found.stopped == INTERRUPTED
        except GuestmarkError as error:
            return None, SecondLog(
                word=Durability.UNKNOWN, states=0, losing=0, why=f"it could not be recorded: {error.message}"
            )
        again = SecondLog(
            word=found.word, states=found.states, losing=found.losing, why=found.first_loss or found.why,
            kept=found.kept,
        )  # fmt: skip
        return found.explanation, again

    def _prove_on_fresh_machine(self) -> Proven:
        assert self._platform is not None
        with self._start_machine(self._platform) as machine:
            self._mount_disk(machine)
            try:
                return self._prove_disk(machine)
            finally:
                self._unmount_disk(machine.agent)

    def _try_cures(self, explained: Explanation, first: Proven) -> Explanation:
        """Adds syncs where they were missing; returns the explanation with their effect."""
        assert isinstance(self._command, AcknowledgingProgram)
        search = CureSearch(self._try_syncs, lambda: self._has_time, bool(self._command.lines))
        return search.add_cure_to_explanation(explained, self._points, first)

    def _try_default_settings(self, found: Proven) -> Explanation | None:
        """Writes the same rows with the server's default settings; returns whether they are lost as well."""
        assert self._rows is not None
        configured, self._rows = self._rows, self._make_rows({})
        settings = [f"{name}={value}" for name, value in sorted(self.params.settings.items())]
        self.tell(f"judging once more without {', '.join(settings)}")
        try:
            judged = self._prove_on_fresh_machine()
        except GuestmarkError as error:
            self.warnings.append(f"the server could not be tried with its default settings: {error.message}")
            return None
        finally:
            self._rows = configured
        self._stopped = judged.stopped == INTERRUPTED
        return Explanation(
            said=found.first_loss, files=[], without=settings, states=judged.states, losing=judged.losing
        )

    def _make_rows(self, settings: Mapping[str, str]) -> Rows:
        return Rows(self._method, self._account, settings, self.params.records)

    def _try_syncs(self, syncs: AddedSyncs, *, until_loss: bool) -> TriedSyncs | None:
        """Judges the program with syncs added, as a `SyncTrial`; warns if they cannot be added."""
        assert isinstance(self._command, AcknowledgingProgram)
        self.tell(f"judging once more with {_describe_syncs(syncs)} added")
        self._enough, self._explains = (1, False) if until_loss else (_ENOUGH_AGAIN, True)
        try:
            self._command.follow_program(syncs)
            found = self._prove_on_fresh_machine()
        except GuestmarkError as error:
            self.warnings.append(f"a sync could not be added to the program: {error.message}")
            return None
        self._stopped = found.stopped == INTERRUPTED
        return TriedSyncs(syncs, found, self._points, self._command.calls or ())

    @property
    def _has_time(self) -> bool:
        return not self._stopped and (self.share_s is None or time.monotonic() - self._began < self.share_s)

    def cleanup(self, machine: Machine) -> None:
        """Unmounts the disk."""
        self._unmount_disk(machine.agent)

    def _mount_disk(self, machine: Machine) -> None:
        self._disk = next(disk for disk in machine.disks if disk.spec.role is Role.TARGET)
        self.facts.add(self._disk.facts, TARGET)
        self._disk.mount(machine.agent)

    def _write_records(self, agent: Agent, disk: AttachedDisk, tag: proof.Tag) -> proof.LogPart:
        """Writes the records; each acknowledged one is marked in the log before the next one is written."""
        files = disk.image.logged
        assert files is not None
        start = writelog.count_requests(files.log)
        count = self.params.records
        checkpoints: tuple[range, ...] = ()
        with logged.open_marker(files, self.limit_s) as mark:
            # Mark 0 separates the records from the writes that prepared the disk.
            mark(0)
            try:
                if self._command is not None:
                    count = self._command.run(agent, disk.directory, mark, self.limit_s)
                elif self._rows is not None:
                    checkpoints = self._rows.commit_rows(
                        tag.text,
                        count,
                        mark,
                        functools.partial(writelog.count_requests, files.log),
                        unsafe=tag is proof.CONTROL,
                    )
                else:
                    self._write_acknowledged(agent, disk, tag, count, mark)
            except (AgentError, MachineError, WorkloadError):
                self._check_log_room(disk)
                raise
        end = writelog.count_requests(files.log)
        return proof.LogPart(tag, count, start, end, end, checkpoints)

    def _write_acknowledged(
        self, agent: Agent, disk: AttachedDisk, tag: proof.Tag, count: int, mark: Callable[[int], None]
    ) -> None:
        method, path = self._method, f"{disk.directory}/{tag.file}"
        argv = [
            PROGRAM, "records", "--method", method, "--tag", tag.text, "--first", "0", "--count", str(count),
            "--size", str(method.record_size), "--each", path,
        ]  # fmt: skip
        if method is Method.SQLITE:
            argv = records.build_writer_command(path, tag.text, count)
        program = agent.background(argv, stdin=True)
        deadline = time.monotonic() + self.limit_s
        heard, last = 0, time.monotonic()
        try:
            while program.wait(deadline - time.monotonic(), functools.partial(has_further_lines, heard)):
                if not program.is_running:
                    break
                heard, last = heard + 1, time.monotonic()
                mark(heard)
                # The program waits for this line before the next record, so that no write precedes the mark of an
                # earlier record.
                program.send_input(b"\n")
        except CallError:
            raise
        except (
            AgentError
        ) as error:  # a process that hangs in a flush cannot be killed, and the agent waits for its end
            raise self._make_write_error(disk, error.message, hangs=True) from error
        except MachineError as error:  # the server that writes the log ended between a record and its mark
            hangs = isinstance(error, logged.LogHangsError)
            raise self._make_write_error(disk, error.message, hangs=hangs) from error
        if program.ended is None:
            program.send_signal(signal.SIGKILL)
            hangs = time.monotonic() - last > _HANGS_SHARE * self.limit_s
            slow = f"only {heard:,} of {count:,} records were written within {self.limit_s:g} s"
            raise self._make_write_error(
                disk, slow, hangs=hangs, hint="use fewer --records, or a longer --trial-limit"
            )
        if program.ended.status != 0 or heard != count:
            said = program.read_text().strip().splitlines()
            raise self._make_write_error(disk, said[-1] if said else f"status {program.ended.status}")

    def _make_write_error(
        self, disk: AttachedDisk, said: str, *, hangs: bool = False, hint: str = "see the console"
    ) -> WorkloadError:
        """Returns the error for records that were not written; kills the log's server if a flush hangs."""
        files = disk.image.logged
        assert files is not None
        if hangs:
            said = f"not done within {self.limit_s:g} s: a flush hangs"
            hint = "see the console"
            if files.kill is not None and not self._is_log_full(disk):
                self._disk = None  # unmounting would hang, too
                files.kill()
        return WorkloadError(f"the records cannot be written: {said}", hint=hint)

    @staticmethod
    def _is_log_full(disk: AttachedDisk) -> bool:
        """Returns whether a write was refused because there was no room for the image or the log."""
        assert disk.image.logged is not None
        return classify_errno(writelog.read_refusal(disk.image.logged.log)) is Cause.NO_ROOM

    def _check_log_room(self, disk: AttachedDisk) -> None:
        """Raises `WorkloadError` if there was no room for the image or the log of its writes."""
        if not self._is_log_full(disk):
            return
        # A hypervisor may stop its guest if there is no room, and then nothing can be unmounted either.
        if disk.image.logged is not None and disk.image.logged.kill is not None:
            self._disk = None
            disk.image.logged.kill()
        raise WorkloadError(
            f"{disk.spec.location}, which holds the image and the log of its writes, is full",
            hint="choose another directory: --set location=DIRECTORY, or write less",
        )

    def _write_without_barriers(self, agent: Agent, disk: AttachedDisk) -> proof.LogPart | None:
        """Writes records to a disk mounted without barriers; None if its filesystem cannot be mounted that way."""
        if disk.spec.filesystem not in _BARRIERS or disk.spec.mount_options:
            return None
        self._disk = replace(disk, spec=disk.spec.with_levels(mount="barrier=0"), facts=Mount())
        try:
            self._disk.mount(agent)
        except MachineError as error:
            self._disk = None
            self.warnings.append(f"it cannot be mounted without barriers: {error.message}")
            return None
        part = self._write_records(agent, self._disk, proof.CONTROL)
        self._unmount_disk(agent)
        return part

    def _unmount_disk(self, agent: Agent) -> None:
        if self._disk is not None:
            self._disk.umount(agent, drop_caches=False)
            self._disk = None


def _describe_syncs(syncs: AddedSyncs) -> str:
    places = []
    if syncs.after:
        places.append(format_count(len(syncs.after), "sync"))
    if syncs.every:
        places.append("a sync after every change")
    if syncs.each:
        places.append("one before each acknowledgement")
    return " and ".join(places)


@functools.cache
def _explain_missing_program(needs: str, package: str) -> str:
    """Returns why a plan's program is not available; empty if it is."""
    if not needs:
        return ""
    try:
        done = subprocess.run(
            ["sh", "-c", needs], stdin=subprocess.DEVNULL, capture_output=True, timeout=_ASKED_S, check=False
        )
    except subprocess.TimeoutExpired:
        return f"{needs} does not finish"
    if done.returncode == 0:
        return ""
    if package:
        return f"it is not installed here (apt install {package})"
    return f"{needs} fails here"


def _explain_no_log(target: DiskSpec) -> str:
    """Returns why no log of writes to a target is possible; empty if it is."""
    if target.is_directory:
        return f"{target.filesystem} is a directory of this host, and writes to this host's own disk are not logged"
    if target.is_device:
        return f"{target.location} is written to directly, and only writes to images are logged"
    return ""


def _make_empty_proof(elsewhere: str, method: str) -> Proven:
    """Returns a proof with nothing to judge, because no observed call promised anything."""
    return Proven(
        word=Durability.UNKNOWN if elsewhere else Durability.NOTHING,
        why=elsewhere or "it made no call that promises durability",
        method=method, acknowledged=0, states=0, losing=0, repaired=0, controls=[], below=[], writes=0, flushes=0,
        run_s=0.0, judge_s=0.0,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Flushes:
    """Number of flushes of one disk so far; None if not counted."""

    guest: int | None
    hypervisor: int | None

    def subtract_reading(self, before: _Flushes) -> proof.FlushCounts:
        return proof.FlushCounts(
            _subtract_if_known(self.guest, before.guest),
            _subtract_if_known(self.hypervisor, before.hypervisor),
        )


def _subtract_if_known(now: int | None, before: int | None) -> int | None:
    return None if now is None or before is None else now - before


def _count_flushes(machine: Machine, disk: AttachedDisk) -> _Flushes:
    """Returns the flushes counted by the guest's kernel (Documentation/block/stat.rst) and by the hypervisor."""
    guest = None
    with contextlib.suppress(AgentError):
        columns = read_block_columns(machine, disk)
        # Kernels before 5.5 do not count flushes.
        if len(columns) > _STAT_FLUSHES:
            guest = columns[_STAT_FLUSHES]
    hypervisor = None
    # A vhost-user disk is served by a daemon, whose flushes QEMU does not know.
    if machine.query is not None and disk.spec.bus is not Bus.VHOST_USER:
        for entry in machine.query("query-blockstats"):
            if entry.get("device") == str(Role.TARGET):
                hypervisor = (hypervisor or 0) + int(entry["stats"]["flush_operations"])
    return _Flushes(guest, hypervisor)
