"""The workload `fio` in plans: a job file, with values in it that `--scale` can multiply."""

import re
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import model_validator

from guestmark.plan.schema import Strict, param
from guestmark.workloads.fio.metrics import THREADS_VARIABLE, variables_of

_LARGEST = 1 << 20
# Where a job would leave the disk under test, or the file that is kept with the run.
_ELSEWHERE = re.compile(r"\s*(?:filename|directory)\s*=\s*(?:.*[:,\s])?(?:/|\.\.|~)")
_INCLUDED = re.compile(r"^\s*include\s")


class FioParams(Strict):
    """Either `file`, the path of a job file, or `job`, its text. `${NAME}` in it is an entry of `values`.

    `host_disk` as for `sysbench`.
    """

    file: str | None = param(None, "the job file; or give `job`", "path")
    job: str | None = param(None, "the text of a job file")
    values: dict[str, str | int | float] = param({}, "what `${NAME}` in the job stands for")
    host_disk: Literal["directory", "loop"] = param("directory", "what the host has for a disk")

    @model_validator(mode="after")
    def _one_of_both(self) -> "FioParams":
        if (self.file is None) == (self.job is None):
            raise ValueError("give either file, the path of a job file, or job, its text")
        return self

    def to_params(self) -> dict[str, Any]:
        """As the workload gets them, the text with them. Raises `ValueError` for a file or a job that cannot be run."""
        text = _text_of(self.file) if self.job is None else self.job
        _check(text or "", self.values)
        return {
            "job": text,
            "name": "" if self.file is None else self.file.rpartition("/")[2],
            "values": {name: str(value) for name, value in self.values.items()},
            "disks": [{"role": "target", "host": self.host_disk}],
        }


def _text_of(file: str | None) -> str:
    import os

    path = os.path.expanduser(file or "")
    try:
        with open(path, encoding="utf-8") as stream:
            return stream.read(_LARGEST + 1)
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(
            f"the job file {file!r} cannot be read: {getattr(error, 'strerror', error)}"
        ) from None


def _check(text: str, values: Mapping[str, object]) -> None:
    if len(text) > _LARGEST:
        raise ValueError("the job file is longer than 1 MiB")
    if not re.search(r"^\s*\[[^\]]+\]", text, re.MULTILINE):
        raise ValueError("the job file holds no [job]")
    for number, line in enumerate(text.splitlines(), 1):
        if _ELSEWHERE.match(line):
            raise ValueError(
                f"line {number}, {line.strip()!r}: a job's files are on the disk under test: no absolute path"
            )
        if _INCLUDED.match(line):
            raise ValueError(f"line {number}, {line.strip()!r}: the whole job must be in one file")
    used = set(variables_of(text))
    for name in values:
        if name not in used:
            raise ValueError(f"values.{name} is not used: the job file holds no ${{{name}}}")
    for name in sorted(used - set(values) - {THREADS_VARIABLE}):
        raise ValueError(f"the job file needs values.{name}")
