"""The workload `oltp` in plans: which server, which of sysbench's tests, how much data; the disk is made of factors."""

import re
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, field_validator

from guestmark.core.units import format_size, parse_size
from guestmark.plan.schema import Strict, param
from guestmark.workloads.common.factors import THREADS, count
from guestmark.workloads.sysbench.options import whole_seconds

_TITLES = {"mariadb": "MariaDB", "postgresql": "PostgreSQL"}
_NAME = re.compile(r"[a-z][a-z0-9_.-]{0,63}")
_DIRECTORY = "/var/tmp"  # on a disk: servers treat files in shared memory differently
_SMALLEST = 5 << 20
_UNMOUNTED = frozenset({"format", "bus", "aio", "cluster_size"})  # of a loop device on the host


def _text(value: object) -> object:
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


class OltpParams(Strict):
    """`time` ends a measurement, or `transactions` when that is not 0; `buffer` is the server's own cache, `log` the
    size of its log, `settings` any others of its settings. `host_disk` is as in the workload `sysbench`.
    """

    server: Literal["mariadb", "postgresql"] = param("mariadb", "the database server")
    test: Literal["read_only", "read_write", "write_only"] = param("read_write", "sysbench's test")
    tables: int = param(4, "tables", ge=1, le=1000)
    rows: int = param(10_000, "rows of each table", ge=1, le=1_000_000_000)
    threads: Annotated[str, BeforeValidator(_text)] = param("1", "connections at once", "number")
    time: Annotated[str, BeforeValidator(_text)] = param(
        "10", "how long a measurement lasts", "duration, whole s"
    )
    transactions: Annotated[str, BeforeValidator(_text)] = param(
        "0", "end after so many; 0: after `time`", "number"
    )
    buffer: str = param("64M", "the server's cache", "size")
    log: str = param("48M", "the server's log", "size")
    settings: dict[str, str | int | bool] = param({}, "further settings of the server")
    host_disk: Literal["directory", "loop"] = param("directory", "what the host has for a disk")

    @field_validator("threads")
    @classmethod
    def _is_a_number_of_threads(cls, threads: str) -> str:
        return THREADS.parse(threads)

    @field_validator("time")
    @classmethod
    def _is_a_time(cls, time: str) -> str:
        return whole_seconds(time)

    @field_validator("transactions")
    @classmethod
    def _is_a_count(cls, transactions: str) -> str:
        return count(transactions)

    @field_validator("buffer", "log")
    @classmethod
    def _is_a_size(cls, size: str) -> str:
        number = parse_size(size)
        if number < _SMALLEST or number % (1 << 20):
            raise ValueError(f"{size!r} is not whole MiB, at least {format_size(_SMALLEST)}")
        return f"{number >> 20}M"

    @field_validator("settings")
    @classmethod
    def _are_settings(cls, settings: dict[str, str | int | bool]) -> dict[str, str | int | bool]:
        for name in settings:
            if not _NAME.fullmatch(name):
                raise ValueError(f"{name!r} is not the name of a server's setting")
        return settings

    def to_params(self) -> dict[str, Any]:
        """As the workload gets them. Raises `ValueError` for a test without end and for a setting that is ours."""
        from guestmark.workloads.oltp.databases.kinds import KINDS

        if self.time == "0" and self.transactions == "0":
            raise ValueError("without a limit of time or transactions the test would not end")
        settings: dict[str, str] = {}
        for name, value in self.settings.items():
            if name.replace("-", "_") in KINDS[self.server].reserved:
                raise ValueError(f"settings.{name} is set by guestmark")
            settings[name.replace("-", "_")] = str(int(value)) if isinstance(value, bool) else str(value)
        params = self.model_dump(mode="json", exclude={"host_disk"})
        disk = {"role": "target", "location": _DIRECTORY, "host": self.host_disk}
        return {**params, "settings": settings, "disks": [disk]}
