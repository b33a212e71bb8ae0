"""`${NAME}` in a job file: a value of the plan's, or the factor `threads`."""

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from guestmark.workloads.common.factors import THREADS

JOB_FILE = "guestmark.fio"  # what a job file is called on the disk
THREADS_VARIABLE = "THREADS"  # what the factor `threads` is called in a job file
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


def variables_of(job: str) -> list[str]:
    """The names of all variables in the text of a job file, in order."""
    return _VARIABLE.findall(job)


def environment(values: Mapping[str, str], factors: Mapping[str, str]) -> dict[str, str]:
    """The variables of a job file: those of the plan, and how many threads there are."""
    return {THREADS_VARIABLE: str(THREADS.of(factors) or 1), **values}


class FioJob(msgspec.Struct, frozen=True, kw_only=True):
    """The parameters as a stored plan has them: a job file's text and name, values of its variables, its disk."""

    job: str
    name: str = ""
    values: dict[str, str] = {}
    disks: list[dict[str, Any]] = []
