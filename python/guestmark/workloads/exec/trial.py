"""The trial of `exec`: the same binary on every platform, and the files that it needs elsewhere (`--push`)."""

from __future__ import annotations

import hashlib
import math
import os
import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from guestmark.agent.client import Agent, CommandError
from guestmark.agent.exec_cost import measure_exec_cost
from guestmark.agent.wire import StandardOutput
from guestmark.core import metric_spec, regex
from guestmark.core.cause import Cause
from guestmark.core.errors import UsageError, WorkloadError
from guestmark.core.findings import TARGET, Around, ExecCost, IgnoredStatuses, ShellStart, Written
from guestmark.core.metric import Measurement, Metric
from guestmark.core.model import Cell, Plan
from guestmark.core.performance_events import explain_errno
from guestmark.core.registry import VARIABLE, is_variable
from guestmark.disks.attached import AttachedDisk
from guestmark.disks.mounted import DISK, count_written, find_working_directory, make_work_directory_on
from guestmark.platforms.base import LoggedIn, Machine, find_login
from guestmark.setting.disk import Disks, has_disks
from guestmark.setting.filesystem import Filesystem
from guestmark.workloads.common.flushes import CounterReading
from guestmark.workloads.common.metrics import to_measurements
from guestmark.workloads.common.moving import find_target, sync_everything
from guestmark.workloads.common.program import (
    OUTPUT_LIMIT,
    Lookup,
    check_command,
    compare_program,
    judge_exit,
    quote_output,
)
from guestmark.workloads.exec import ExecWorkload
from guestmark.workloads.exec.command import ExecParams, name_parameter
from guestmark.workloads.exec.files import File, Input, read_stdin

_PIECE = 1 << 20
_SHELL_STARTS = 5  # starts of the shell; their median is subtracted
_NO_SHELL = ShellStart(wall_s=0.0, guest_wall_s=0.0, user_s=0.0, system_s=0.0)
# Reported for a command that takes no longer than its shell: ratios need a value above zero.
_LEAST_S = 1e-6
_FILE_S = 600.0
_DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def copy_files_to_machine(
    machine: Machine, login: LoggedIn, argv: Sequence[str], files: Sequence[File], cwd: str
) -> tuple[list[str], dict[str, Any]]:
    """Copies the files to a machine; returns the command as it is called there, and the arguments to run it with.

    Without files the command runs in the remote user's home directory, else in the directory that holds the files,
    which is also searched first for commands. Arguments that name such a file, relative to `cwd`, are replaced
    by its name there. Raises `WorkloadError` for a file that has changed since the plan was created.
    """
    user = login.caller()
    if not files:
        return list(argv), {"env": dict(user.env), "cwd": user.cwd}
    for file in files:
        _copy_file_to_machine(machine, file, f"{login.scratch}/{os.path.basename(file.path)}")
    names = {file.path: f"./{os.path.basename(file.path)}" for file in files}
    command = [names.get(os.path.normpath(os.path.join(cwd, word)), word) for word in argv]
    path = f"{login.scratch}:{user.env.get('PATH', _DEFAULT_PATH)}"
    return command, {"env": {**user.env, "PATH": path}, "cwd": login.scratch}


def _copy_file_to_machine(machine: Machine, file: File, target: str) -> None:
    machine.agent.write_file(target, _read_pieces(file.path), mode=file.mode | 0o600, timeout_s=_FILE_S)
    if machine.agent.sha256(target, timeout_s=_FILE_S).sha256 != file.sha256:
        raise WorkloadError(f"{file.path} has changed since the run began, or was not copied completely")


def _read_pieces(path: str) -> Iterator[bytes]:
    try:
        with open(path, "rb", buffering=0) as stream:
            while piece := stream.read(_PIECE):
                yield piece
    except OSError as error:
        raise WorkloadError(f"{path} cannot be read: {error.strerror or error}") from error


# Bytes of each output stream that are kept for `show --console`.
_KEPT = 2048
# Programs that check whether their output is /dev/null, and then do less.
_LAZY = {"grep", "egrep", "fgrep", "tar"}


class ExecTrial(ExecWorkload):
    """Runs one command; measures its time on both clocks, processor time and memory, and reads metrics it prints."""

    def __init__(self, plan: Plan, cell: Cell) -> None:
        context = plan.context
        super().__init__(plan, cell)
        self._argv: list[str] = substitute_levels(cell)
        self._hooks = {name: substitute_in_text(text, cell) for name, text in self.params.hooks.items()}
        specs = self.params.metric_specs
        self._counted = [spec for spec in specs if spec.event is not None]
        self._metrics = [spec for spec in specs if spec.event is None]
        self._around = Around(each={})
        self._ignored = IgnoredStatuses(each={})
        self._stdin = b"" if self.params.stdin is None else _load_stdin(self.params.stdin)
        self._caller: dict[str, Any] = {
            "env": {**context.env, **_list_variables(cell)},
            "cwd": context.cwd if self.params.cwd is None else self.params.cwd,
        }
        if cell.platform.is_guest:  # elsewhere the agent already has the right identity
            self._caller |= {"uid": context.uid, "gid": context.gid, "groups": context.groups}
        if cell.platform.foreign_architecture:  # the caller's directories do not exist there
            self._caller["cwd"] = "/"
        self._shell_start: ShellStart | None = None
        # Set only for a machine without an agent.
        self._exec_cost: ExecCost | None = None
        # Whether the command was typed rather than written in a plan.
        self._typed = context.typed
        # The command's directory on its disk, or the device of a disk without filesystem.
        self._disk = ""
        self._least_written = math.inf

    @classmethod
    def check_request(cls, plan: Plan, cells: Sequence[Cell]) -> None:
        """Raises `UsageError` if a command does not exist, or cannot run on its disk.

        A machine with its own files looks up commands there, so that is not checked here.
        """
        for cell in cells:
            bare = has_disks(cell) and any(disk.filesystem is Filesystem.NONE for disk in cell.view(Disks))
            if bare and cell.platform.is_guest and not mentions_disk(cell):
                raise UsageError(
                    f"{cell.id}: a disk without a filesystem has no directory to run the command in",
                    hint="write {disk} where the command takes the device, or choose a filesystem",
                )
        here = plan.context
        commands = set()
        for cell in cells:
            if cell.shares_root:
                commands.add((*substitute_levels(cell), ExecParams.read_command(cell).cwd or here.cwd))
        for *argv, cwd in sorted(commands):
            check_command(argv, env=here.env, cwd=cwd, typed=here.typed)

    @classmethod
    def preflight(cls, plan: Plan, cells: Sequence[Cell]) -> Sequence[str]:
        """Returns remarks on files that the command names by relative paths, which it will not find on its disk."""
        here = plan.context.cwd
        mounted_cells = [cell for cell in cells if has_disks(cell) and not mentions_disk(cell)]
        # Arguments that need a remark; each gets only one, however many cells have it.
        words: dict[str, None] = {}
        for cell in mounted_cells:
            for word in substitute_levels(cell)[1:]:
                if word not in ("", ".", "..") and not os.path.isabs(word):
                    words[word] = None
        lazy = set()
        for cell in cells:
            program = os.path.basename(substitute_levels(cell)[0])
            if program in _LAZY and ExecParams.read_command(cell).output is StandardOutput.NULL:
                lazy.add(program)
        remarks = []
        for name in sorted(lazy):
            remarks.append(
                f"{name} stops early when its output is /dev/null: --output pipe makes it do all of its work"
            )
        for word in words:
            if os.path.exists(os.path.join(here, word)):
                remarks.append(
                    f"the command runs in a new directory on its disk and will not find {word} of {here} there: "
                    "give its absolute path"
                )
        return remarks

    def prepare(self, machine: Machine) -> None:
        """Finds the command on this host and on the machine, and compares the digests.

        Raises `WorkloadError` if there is no such command, `AttestationError` if it is another file than on the host.
        """
        here = Lookup(self._argv[0], self._caller["env"].get("PATH"), self._caller["cwd"])
        login = find_login(machine)
        disk = find_target(machine) if machine.disks else None
        # The command runs on the disk, but the user named the program relative to the current directory.
        if disk is not None and os.sep in self._argv[0]:
            self._argv[0] = os.path.join(self._caller["cwd"], self._argv[0])
        if login is not None:
            self._argv, self._caller = copy_files_to_machine(
                machine, login, self._argv, self.params.push, self._caller["cwd"]
            )
        path, cwd = self._caller["env"].get("PATH"), self._caller["cwd"]
        try:
            found = compare_program(
                machine.agent, self._argv[0], path=path, cwd=cwd, cell=self.cell, here=here
            )
        except CommandError as error:
            raise _make_not_runnable_error(self._argv, error, there=login is not None) from error
        found.add_facts(self.facts)
        if found.warning:
            self.warnings.append(found.warning)
        # The disk is mounted after the search, which starts from the user's directory, and before the user's set-up,
        # which may fill the disk.
        if disk is not None:
            self._mount_disk_under_test(disk, machine.agent)
            # What made the disk must not be written to it while the command runs.
            sync_everything(machine.agent)
        elif found_directory := find_working_directory(machine.agent, self._caller["cwd"]):
            self.facts.add(found_directory)
        self._run_hook("setup", machine)
        if self.params.shell:
            self._shell_start = self.facts.add(self._measure_shell_start(machine))
        if not machine.agent.in_machine:
            self._exec_cost = self.facts.add(measure_exec_cost(machine.agent))

    def _measure_shell_start(self, machine: Machine) -> ShellStart:
        """Measures how long the shell's own start takes on this machine.

        Raises `WorkloadError` if an empty command fails.
        """
        argv = [*self._argv[:-1], ""]
        runs = []
        for _ in range(_SHELL_STARTS + 1):
            run = machine.agent.exec(
                argv,
                **self._caller,
                timeout_s=self.limit_s,
                output_limit=OUTPUT_LIMIT,
                stdout=self.params.output,
            )
            runs.append(run)
        judge_exit(runs[0], self.warnings, self.limit_s, ignore_failure=False)
        # The first start reads the shell's files from the disk.
        warm = runs[1:]
        return ShellStart(
            wall_s=statistics.median(run.wall_s for run in warm),
            guest_wall_s=statistics.median(run.guest_wall_s for run in warm),
            user_s=statistics.fmean(run.user_s for run in warm),
            system_s=statistics.fmean(run.system_s for run in warm),
        )

    def _mount_disk_under_test(self, disk: AttachedDisk, agent: Agent) -> None:
        """Gives the command a new directory on the disk, or replaces `{disk}` in it by the disk's path."""
        caller = self._caller
        found = make_work_directory_on(
            agent, disk, uid=caller.get("uid"), gid=caller.get("gid"), groups=caller.get("groups")
        )
        if found is not None:
            self.facts.add(disk.facts, TARGET)
            self.facts.add(found)
        self._disk = disk.device if found is None else found.path
        if not mentions_disk(self.cell):
            self._caller["cwd"] = self._disk
        self._argv = [self._substitute_disk(word) for word in self._argv]
        self._hooks = {name: self._substitute_disk(text) for name, text in self._hooks.items()}

    def _substitute_disk(self, text: str) -> str:
        """Returns the text with the disk's path in place of `{disk}`."""
        if not self._disk or not mentions_disk(self.cell):
            return text
        return text.replace(DISK, self._disk)

    def _run_hook(self, name: str, machine: Machine) -> None:
        """Runs a command of the user before or after the measured one, in the same shell. Raises `WorkloadError`."""
        if name not in self._hooks:
            return
        shell = self._argv[:-2] if self.params.shell else ["/bin/sh"]
        result = machine.agent.exec(
            [*shell, "-c", self._hooks[name]],
            **self._caller,
            timeout_s=self.limit_s,
            output_limit=OUTPUT_LIMIT,
        )
        self._around.each.setdefault(name, []).append(result.wall_s)
        self.facts.add(self._around)
        try:
            judge_exit(result, self.warnings, self.limit_s, ignore_failure=False)
        except WorkloadError as error:
            raise WorkloadError(f"--{name}: {error.message}", hint=error.hint, cause=error.cause) from error

    def run(self, machine: Machine) -> list[Measurement]:
        """Runs the command once. Raises `WorkloadError` with a one-line reason if it fails."""
        self._run_hook("prepare", machine)
        # Counters are read outside the timed span, and only for a disk whose flushes matter.
        below = CounterReading.read_before(machine) if self._disk else None
        written_before = None if self._disk else count_written(machine.agent)
        result = machine.agent.exec(
            self._argv,
            **self._caller,
            stdin=self._stdin,
            timeout_s=self.limit_s,
            output_limit=OUTPUT_LIMIT,
            stdout=self.params.output,
            counters=[spec.event for spec in self._counted if spec.event is not None],
        )
        self.printed = (result.stdout[-_KEPT:] + result.stderr[-_KEPT:]).decode(errors="replace")
        if below is not None:
            below.read_changes(flushed=None).add_facts(self.facts)
        self._note_written(machine.agent, written_before)
        try:
            judge_exit(
                result,
                self.warnings,
                self.limit_s,
                ignore_failure=self.params.ignore_failure,
                statuses=self.params.statuses,
            )
            if result.status not in self.params.statuses:
                count = self._ignored.each.get(str(result.status), 0)
                self._ignored.each[str(result.status)] = count + 1
                self.facts.add(self._ignored)
        except WorkloadError as error:
            hints = []
            if error.cause is Cause.STATUS and self._typed:
                hints.append("-i measures failing runs, too")
            if not result.stderr and self.params.output is not StandardOutput.PIPE:
                hints.append("its standard output went to /dev/null: --show-output keeps and shows it")
            raise WorkloadError(error.message, hint="; ".join(hints), cause=error.cause) from error
        values: list[tuple[Metric, float]] = []
        if self._metrics or self.params.expect is not None:
            stdout, stderr = (text.decode(errors="replace") for text in (result.stdout, result.stderr))
            self._check_output(stdout, stderr)
            for spec in self._metrics:
                values.append((spec.metric, self._find_value(spec, machine, stdout, stderr)))
        values += self._report_events(result.counted)
        # The check may look at files of the command, which `conclude` may remove.
        self._run_hook("check", machine)
        self._run_hook("conclude", machine)
        start = self._shell_start or _NO_SHELL
        if not result.in_machine:
            values.append((metric_spec.WALL, self._subtract_exec_cost(result.wall_s)))
            return to_measurements(values)
        values += [
            (metric_spec.WALL, max(result.wall_s - start.wall_s, _LEAST_S)),
            (metric_spec.GUEST_WALL, max(result.guest_wall_s - start.guest_wall_s, _LEAST_S)),
            (metric_spec.USER, max(result.user_s - start.user_s, 0.0)),
            (metric_spec.SYSTEM, max(result.system_s - start.system_s, 0.0)),
            (metric_spec.MAX_RSS, float(result.max_rss_bytes)),
        ]
        return to_measurements(values)

    def _subtract_exec_cost(self, wall_s: float) -> float:
        """Returns a command's time less the known cost of an empty command or of the shell's start."""
        cost = self._exec_cost
        assert cost is not None
        spent_s = self._shell_start.wall_s if self._shell_start else cost.wall_s
        left_s = wall_s - spent_s
        if left_s < cost.high_s - cost.low_s:
            self.warnings.append(
                f"an empty command takes {cost.low_s * 1e3:.3g} to {cost.high_s * 1e3:.3g} ms when timed from outside, "
                "and this command's own time is within that uncertainty: make each run do more work"
            )
        return max(left_s, _LEAST_S)

    def _note_written(self, agent: Agent, before: int | None) -> None:
        """Records how much a run wrote to disks other than its own; comparisons with in-memory runs need it."""
        if before is None:
            return
        after = count_written(agent)
        if after is None:
            return
        self._least_written = min(self._least_written, after - before)
        self.facts.add(Written(least=int(self._least_written)))

    def cleanup(self, machine: Machine) -> None:
        """Runs the user's cleanup. Files that the command created stay on the host; in a guest they end with it."""
        self._run_hook("cleanup", machine)

    def _report_events(self, counted: Sequence[int]) -> Iterator[tuple[Metric, float]]:
        """Yields the counts of events; warns of one that cannot be counted, which this trial then lacks."""
        for spec, count in zip(self._counted, counted, strict=True):
            if count >= 0:
                yield spec.metric, float(count)
                continue
            self.warnings.append(f"{spec.metric.name} is not counted: {explain_errno(-count)}")

    def _check_output(self, *texts: str) -> None:
        expected = self.params.expect
        if expected is None:
            return
        try:
            found = regex.find_last_match(expected, texts, self.limit_s)
        except regex.TooCostlyError as error:
            raise WorkloadError(f"searching this output for {expected!r} takes {error}") from error
        if found is None:
            raise WorkloadError(
                f"the command succeeded, but nothing in its output matches {expected!r}"
                + quote_output(texts[0] or texts[1])
            )

    def _find_value(self, spec: metric_spec.MetricSpec, machine: Machine, stdout: str, stderr: str) -> float:
        """Returns the metric's value from the command's output, or from the file that it wrote."""
        if not spec.file:
            return self._extract_value(spec, stdout, stderr)
        path = os.path.join(
            self._caller["cwd"], self._substitute_disk(substitute_in_text(spec.file, self.cell))
        )
        try:
            text = machine.agent.read_file(path, limit=OUTPUT_LIMIT).decode(errors="replace")
        except CommandError as error:
            raise WorkloadError(
                f"metric {spec.metric.name}: {path} cannot be read: {error.message}",
                hint=error.hint,
                cause=error.cause,
            ) from error
        return spec.extract_value(text, limit_s=self.limit_s)

    def _extract_value(self, spec: metric_spec.MetricSpec, stdout: str, stderr: str) -> float:
        try:
            return spec.extract_value(stdout, stderr, limit_s=self.limit_s)
        except WorkloadError as error:
            raise WorkloadError(
                error.message + quote_output(stdout or stderr), hint=error.hint, cause=error.cause
            ) from error


def substitute_levels(cell: Cell) -> list[str]:
    """Returns the cell's command with its levels in place of `{name}`."""
    return [substitute_in_text(word, cell) for word in ExecParams.read_command(cell).argv]


def substitute_in_text(text: str, cell: Cell) -> str:
    """Returns the text with the cell's levels in place of `{name}`."""
    for name in ExecParams.read_command(cell).parameters:
        if name in cell.factors:
            text = text.replace("{" + name_parameter(name) + "}", cell.factors[name])
    return text


def mentions_disk(cell: Cell) -> bool:
    """Returns whether the command or a hook contains `{disk}`; otherwise the command runs on the disk."""
    texts = ExecParams.read_command(cell).placeholder_texts
    return DISK.strip("{}") not in cell.factors and any(DISK in text for text in texts)


def build_proof_params(cell: Cell) -> dict[str, Any]:
    """Returns parameters of `powercut` that judge the command's own syncs; none if it cannot be rerun this way."""
    command = ExecParams.read_command(cell)
    if command.push or command.stdin is not None or not cell.shares_root:
        return {}
    before = [command.hooks[name] for name in ("setup", "prepare") if name in command.hooks]
    return {
        "method": "syncs",
        "command": substitute_levels(cell),
        "before": [substitute_in_text(text, cell) for text in before],
        "env": _list_variables(cell),
        "cwd": (command.cwd or "") if mentions_disk(cell) else "",
        "statuses": list(command.statuses),
    }


def _list_variables(cell: Cell) -> dict[str, str]:
    """Returns the environment variables that factors set in this cell."""
    return {name.removeprefix(VARIABLE): level for name, level in cell.factors.items() if is_variable(name)}


def _load_stdin(given: Input) -> bytes:
    data = read_stdin(given.path)
    if hashlib.sha256(data).hexdigest() != given.sha256:
        raise WorkloadError(f"the input {given.path} has changed since the run began")
    return data


def _make_not_runnable_error(argv: list[str], error: CommandError, *, there: bool = False) -> WorkloadError:
    name = argv[0]
    if error.cause is Cause.NOT_FOUND and there:
        return WorkloadError(
            f"{Cause.NOT_FOUND.words} on the machine: {name!r}",
            hint="install it on the machine, or copy it: --push FILE",
            cause=Cause.NOT_FOUND,
        )
    if error.cause is Cause.NOT_FOUND and len(argv) == 1 and any(character.isspace() for character in name):
        return WorkloadError(
            f"{Cause.NOT_FOUND.words}: {name!r}",
            hint=f"pass each argument separately, or use a shell: sh -c {name!r}",
            cause=Cause.NOT_FOUND,
        )
    return error
