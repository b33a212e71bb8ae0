"""The workload `fio`: the user's job file on the disk under test.

Rates are bytes or operations a second over all jobs; latencies are in seconds.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

import msgspec

from guestmark.core.findings import Fact
from guestmark.core.levels import Levels
from guestmark.core.metric import Better, Metric
from guestmark.core.metric_spec import GUEST_WALL, SYSTEM, USER, WALL
from guestmark.core.model import Cell
from guestmark.core.params import Params, param
from guestmark.core.platform_kind import Program
from guestmark.core.platform_spec import PlatformSpec
from guestmark.workloads.base import Workload
from guestmark.workloads.common.factors import THREADS, build_host_target_disk, decides_disk_factor_on_host
from guestmark.workloads.common.metrics import BELOW, THROUGHPUT
from guestmark.workloads.sysbench import READ_THROUGHPUT, READS, WRITE_THROUGHPUT, WRITES

OPERATIONS = Metric("operations_per_s", "1/s", Better.HIGHER)  # reads and writes
READ_LATENCY = Metric("read_latency_avg_s", "s")  # mean time from a request to its completion
READ_P99 = Metric("read_latency_p99_s", "s")  # of the worst job
WRITE_LATENCY = Metric("write_latency_avg_s", "s")
WRITE_P99 = Metric("write_latency_p99_s", "s")
SYNC_LATENCY = Metric("sync_latency_avg_s", "s")
RUNTIME = Metric("runtime_s", "s")  # of the longest job, as fio reports it

ALL = (
    THROUGHPUT,
    OPERATIONS,
    READ_THROUGHPUT,
    WRITE_THROUGHPUT,
    READS,
    WRITES,
    READ_LATENCY,
    READ_P99,
    WRITE_LATENCY,
    WRITE_P99,
    SYNC_LATENCY,
    RUNTIME,
    WALL,
    GUEST_WALL,
    USER,
    SYSTEM,
    *BELOW,
)


class Fio(Fact, kw_only=True):
    """The version that fio reports."""

    version: str | None = msgspec.field(name="fio", default=None)


_LARGEST = 1 << 20  # characters of a job file
_INCLUDED = re.compile(r"^\s*include\s")
_SECTION = re.compile(r"^\s*\[([^\]]+)\]", re.MULTILINE)
_COMMENT = re.compile(r"\s*[;#]")
# Options whose values are files or directories.
_PLACES = frozenset(
    {
        "directory",
        "filename",
        "filename_format",
        "merge_blktrace_file",
        "opendir",
        "read_iolog",
        "replay_redirect",
        "write_iolog",
    }
)
# A path, or one of several, that may leave the disk under test.
_ELSEWHERE = re.compile(r"(?:.*[:,\s])?(?:/|\.\.|~)|.*/\.\.(?:[/:,\s]|$)", re.DOTALL)
# Options with which a job runs after another one; some have a second name.
_LATER = frozenset({"startdelay", "start_delay", "stonewall", "wait_for", "wait_for_previous"})
_AFTER_ALL = frozenset({"stonewall", "wait_for_previous"})
_GLOBAL = "global"
JOB_FILE = "guestmark.fio"  # name of the job file on the disk
# Name of the factor `threads` in a job file.
THREADS_VARIABLE = "THREADS"
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


def find_variables(job: str) -> list[str]:
    """Returns the names of all variables in the text of a job file, in order."""
    return _VARIABLE.findall(job)


def build_job_environment(values: Mapping[str, str], levels: Levels) -> dict[str, str]:
    """Returns the values of a job file's variables: those of the plan, and the number of threads."""
    return {THREADS_VARIABLE: str(levels.get(THREADS) or 1), **values}


def _substitute_values(text: str, values: Mapping[str, object]) -> str:
    """Returns the text with the values of its variables, as fio replaces them; unknown ones are kept."""
    return _VARIABLE.sub(lambda found: str(values.get(found[1], found[0])), text)


def _read_job(file: str) -> str:
    path = os.path.expanduser(file)
    try:
        with open(path, encoding="utf-8") as stream:
            return stream.read(_LARGEST + 1)
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(
            f"the job file {file!r} cannot be read: {getattr(error, 'strerror', error)}"
        ) from None


def _check_job(text: str, values: Mapping[str, object]) -> None:
    if len(text) > _LARGEST:
        raise ValueError("the job file is larger than 1 MiB")
    jobs = [name.strip() for name in _SECTION.findall(text) if name.strip() != _GLOBAL]
    if not jobs:
        raise ValueError("the job file contains no [job] section")
    begun: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        if _COMMENT.match(line):
            continue
        if section := _SECTION.match(line):
            begun.append(section[1].strip())
        option, _, value = (part.strip() for part in line.partition("="))
        path = _find_named_path(section, option, value)
        if _ELSEWHERE.match(_substitute_values(path, values)):
            raise ValueError(
                f"line {number}, {line.strip()!r}: a job's files must be on the disk under test: use a relative path"
            )
        if _INCLUDED.match(line):
            raise ValueError(f"line {number}, {line.strip()!r}: a job must be one file, without include")
        # The first job has none before it.
        if option in _LATER and len(jobs) > 1 and (option not in _AFTER_ALL or begun != jobs[:1]):
            raise ValueError(
                f"line {number}, {line.strip()!r}: the rates of jobs are added, so all must run at the same time: "
                "make one workload of each job"
            )
    used = set(find_variables(text))
    for name in values:
        if name not in used:
            raise ValueError(f"values.{name} is not used: the job file does not contain ${{{name}}}")
    for name in sorted(used - set(values) - {THREADS_VARIABLE}):
        raise ValueError(f"the job file needs values.{name}")


def _find_named_path(section: re.Match[str] | None, option: str, value: str) -> str:
    """Returns the path that a line of a job file gives to a job; empty if it gives none."""
    # Without a file name fio opens the file of the job's name, even if that is a device.
    if section:
        return section[1].strip()
    return value if option in _PLACES else ""


class FioParams(Params, frozen=True, kw_only=True):
    """A job file, by its text or its path. `${NAME}` in it is an entry of `values`.

    `host_disk` is as in the workload `sysbench`.
    """

    job: Annotated[str, param("text of a job file, in place of `file`", accepts=str | None, default=None)]
    name: str = ""  # file name of the job file
    values: Annotated[
        dict[str, str],
        param("values for `${NAME}` in the job", accepts=dict[str, str | int | float], default={}),
    ] = {}
    disks: Annotated[
        list[dict[str, Any]],
        param(
            "disk under test on the host: a directory or a loop device",
            key="host_disk",
            accepts=Literal["directory", "loop"],
            default="directory",
            parse=build_host_target_disk,
        ),
    ] = []

    INPUTS: ClassVar = {
        "file": param("path of the job file, in place of `job`", "path", accepts=str | None, default=None)
    }

    @classmethod
    def make(
        cls,
        *,
        job: str | None,
        file: str | None,
        values: Mapping[str, str | int | float],
        disks: list[dict[str, Any]],
    ) -> FioParams:
        """Creates the parameters, reading the job file. Raises `ValueError` for a file or a job that cannot be run."""
        if (file is None) == (job is None):
            raise ValueError("give either file, the path of a job file, or job, its text")
        text = job if file is None else _read_job(file)
        _check_job(text or "", values)
        return cls(
            job=text or "",
            name="" if file is None else file.rpartition("/")[2],
            values={name: str(value) for name, value in values.items()},
            disks=disks,
        )


class FioWorkload(Workload[FioParams]):
    """Runs the user's job file."""

    name = "fio"
    help = "runs an fio job file on the disk under test"
    measures = ALL
    factors = (THREADS,)
    shares_machine = True
    programs = (Program("fio", "fio"),)

    @classmethod
    def describe_params(cls, params: FioParams) -> str:
        """Names the job file, if there is one."""
        return f"fio {params.name}".strip()

    @classmethod
    def decides_factor(cls, params: FioParams, factor: str, platform: PlatformSpec) -> bool | None:
        """Rejects `threads` for a job that does not use it."""
        if factor == THREADS.name:
            return None if THREADS_VARIABLE in find_variables(params.job) else False
        return decides_disk_factor_on_host(params, factor, platform)

    @classmethod
    def acknowledging_params(cls, cell: Cell) -> Mapping[str, Any]:
        """Returns parameters with which the job's syncs count as acknowledgements; its files are laid out first."""
        params = cell.workload.read_params(FioParams)
        return {
            "method": "syncs",
            "command": ["fio", "--output-format=json", JOB_FILE],
            "before": [f"fio --create_only=1 {JOB_FILE} >/dev/null"],
            "files": {JOB_FILE: params.job},
            "env": build_job_environment(params.values, cell.levels),
        }

    @classmethod
    def trial_class(cls) -> type[Workload[FioParams]]:
        """Imports and returns the class of its trials; done late because its imports are slow."""
        from guestmark.workloads.fio.trial import FioTrial

        return FioTrial
