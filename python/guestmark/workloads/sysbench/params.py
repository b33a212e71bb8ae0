"""The workload `sysbench` in plans: which test, with which of sysbench's own options."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Field, create_model

from guestmark.core.units import format_size, parse_size
from guestmark.plan.schema import Strict, param
from guestmark.workloads.sysbench.options import OPTIONS

_ROOM = 1.15  # a disk for the files, by default: journal, inodes and a reserve included
_GIB = 1 << 30
_SEED = "1"  # the same requests on every platform and in every trial
# sysbench's defaults that say what is measured; written down, so that a stored plan holds them.
_DEFAULTS: Mapping[str, Mapping[str, str]] = {
    "cpu": {"cpu_max_prime": "10000"},
    "memory": {"memory_block_size": "1K", "memory_total_size": "100G", "memory_scope": "global",
               "memory_oper": "write", "memory_access_mode": "seq"},
    "threads": {"thread_yields": "1000", "thread_locks": "8"},
    "mutex": {"mutex_num": "4096", "mutex_locks": "50000", "mutex_loops": "10000"},
    "fileio": {"file_num": "128", "file_total_size": "2G", "file_block_size": "16K", "file_test_mode": "rndrw",
               "file_io_mode": "sync", "file_extra_flags": "none", "file_fsync_freq": "100", "file_fsync_all": "off",
               "file_fsync_end": "on", "file_fsync_mode": "fsync", "file_merged_requests": "0",
               "file_rw_ratio": "1.5"},
}  # fmt: skip
_END_BY_THEMSELVES = {"memory", "mutex"}


def _text(value: object) -> object:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, list):
        return ",".join(str(item) for item in value) or "none"
    return str(value) if isinstance(value, int | float) else value


class _Common(Strict):
    """`host_disk`: what `fileio` has on the host: a directory of its own filesystem, or a formatted image that is
    mounted with the same options as in a guest (`loop`, needs root).
    """

    test: Literal["cpu", "memory", "threads", "mutex", "fileio"] = param(..., "sysbench's test")
    host_disk: Literal["directory", "loop"] = param("directory", "what `fileio` has on the host")

    def to_params(self) -> dict[str, Any]:
        """As the workload gets them. Raises `ValueError` for an option of another test and for what would not end."""
        given: dict[str, str] = {}
        for name, option in OPTIONS.items():
            text = getattr(self, name)
            if text is None:
                continue
            if option.test not in ("", self.test):
                raise ValueError(f"{name} is an option of the test {option.test}, not of {self.test}")
            try:
                given[name] = option.parse(text)
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from None
        options = {
            "threads": "1",
            "rand_seed": _SEED,
            **_limits(self.test, given),
            **_DEFAULTS[self.test],
            **given,
        }
        params: dict[str, Any] = {"test": self.test, "options": options}
        if self.test == "fileio":
            size = parse_size(options["file_total_size"]) * _ROOM
            disk = {
                "role": "target",
                "host": self.host_disk,
                "size": format_size(-(-round(size) // _GIB) * _GIB),
            }
            params["disks"] = [disk]
        elif self.host_disk != "directory":
            raise ValueError("host_disk is for the test fileio")
        return params


_OptionText = Annotated[str | None, BeforeValidator(_text), Field()]


SysbenchParams: type[BaseModel] = create_model(
    "SysbenchParams",
    __base__=_Common,
    **{name: (_OptionText, param(None, option.help)) for name, option in OPTIONS.items()},
)  # type: ignore[call-overload]


def _limits(test: str, given: Mapping[str, str]) -> dict[str, str]:
    """sysbench's 10 seconds unless a limit is given; a limit that is given is the only one."""
    if test in _END_BY_THEMSELVES:
        return {"events": "0", "time": given.get("time", "0")}
    limits = {"events": given.get("events", "0"), "time": given.get("time", "0")}
    if limits == {"events": "0", "time": "0"}:
        if given.keys() & limits.keys():
            raise ValueError("without a limit of events or time the test would not end")
        limits["time"] = "10"
    return limits
