"""What plans know about the kinds of workloads: their parameters, their metrics, and the factors they take.

A kind is one `register(WorkloadKind(...))` in a module that `_MODULES` names; nothing here starts a machine.
"""

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from guestmark.core.model import Metric
from guestmark.core.nearest import unknown
from guestmark.core.platform_spec import PlatformSpec

if TYPE_CHECKING:
    from pydantic import BaseModel

# Where the kinds register themselves; imported when a plan names one (pydantic costs start-up time).
_MODULES = {
    "exec": "guestmark.workloads.exec.kind",
    **dict.fromkeys(
        ("upload", "dd", "direct", "share", "tar", "fill", "filewrite", "fileread", "guestfish"),
        "guestmark.workloads.disk.kinds",
    ),
    "netboot": "guestmark.workloads.netboot.kind",
    "syscalls": "guestmark.workloads.syscalls.kind",
    "guestfs-api": "guestmark.workloads.guestfs.kind",
    **dict.fromkeys(("boot", "guestfs-run"), "guestmark.workloads.boot.kind"),
    "sysbench": "guestmark.workloads.sysbench.kind",
    "fio": "guestmark.workloads.fio.kind",
    "oltp": "guestmark.workloads.oltp.kind",
}


@dataclass(frozen=True, slots=True)
class WorkloadKind:
    """One kind of workload as plans see it.

    `model` gives the pydantic model of its parameters (a function, so that pydantic is imported only for plans): strict
    and with `extra="forbid"`; sizes and durations are best kept as written (`size = "1500M"`), so that `--scale` can
    multiply them. The workload is given `model.model_dump(mode="json", exclude_none=True)`, or what the model's method
    `to_params()` returns when it has one (it may raise `ValueError` or `UsageError`).

    The other functions are given these final parameters: `metrics` returns those that will be measured, the primary one
    first; `label` what tables show when the plan says nothing. `takes` says whether a factor means anything to this
    workload on that platform; where it does not, there is one cell without the factor, as for factors that the platform
    itself does not take. `decides`, given the parameters too, goes before both: True takes a factor even where the
    platform itself does not (mount options on the host, where the workload mounts an image), False does not take it,
    None leaves it to them.
    """

    name: str
    help: str
    model: "Callable[[], type[BaseModel]]"
    metrics: Callable[[Mapping[str, Any]], tuple[Metric, ...]]
    label: Callable[[Mapping[str, Any]], str] = lambda _params: ""
    takes: Callable[[str, PlatformSpec], bool] = lambda _factor, _platform: True
    decides: Callable[[Mapping[str, Any], str, PlatformSpec], bool | None] = (
        lambda _params, _factor, _platform: None
    )

    def params(self, raw: Mapping[str, Any]) -> Mapping[str, Any]:
        """The parameters the workload is given, from those of the plan.

        Raises `pydantic.ValidationError` (which every error is reported from), `ValueError` or `UsageError`.
        """
        checked = self.model().model_validate(dict(raw))
        to_params = getattr(checked, "to_params", None)
        made: Mapping[str, Any] = (
            to_params() if to_params else checked.model_dump(mode="json", exclude_none=True)
        )
        return made


def takes_only(*names: str) -> Callable[[str, PlatformSpec], bool]:
    """A kind's `takes` for which these factors mean something and no others do."""
    return lambda factor, _platform: factor in names


_registry: dict[str, WorkloadKind] = {}


def register(kind: WorkloadKind) -> WorkloadKind:
    """Makes a kind known. Raises `ValueError` when the name is taken by another one."""
    if _registry.setdefault(kind.name, kind) is not kind:
        raise ValueError(f"workload {kind.name!r} is registered twice")
    return kind


def get(name: str) -> WorkloadKind:
    """The kind of that name. Raises `UsageError` with the nearest known one."""
    if name not in _registry and name in _MODULES:
        importlib.import_module(_MODULES[name])
    if name not in _registry:
        raise unknown("workload", name, names())
    return _registry[name]


def names() -> tuple[str, ...]:
    """All kinds, without importing any."""
    return tuple(dict.fromkeys([*_MODULES, *_registry]))
