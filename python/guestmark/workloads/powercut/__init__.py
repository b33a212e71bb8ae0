"""The workload `powercut`: what a power cut would leave on a machine's disk."""

from __future__ import annotations

import shlex
from typing import Annotated, Any, Literal

import msgspec

from guestmark.core.findings import Proven
from guestmark.core.metric import Better, Measurement, Metric
from guestmark.core.params import Params, param
from guestmark.core.platform_spec import PlatformSpec
from guestmark.core.units import parse_duration
from guestmark.powercut.records import Method
from guestmark.workloads.base import Sections, Workload
from guestmark.workloads.common import metrics

_STATES, _OF_SERVERS = 300, 40
# A disk size that few programs fill; only written blocks take up space.
_OF_PROGRAMS = "1G"
# The smallest disk that xfs accepts.
_OF_DATABASES = "320M"
_OF_IMAGE = frozenset({"filesystem", "mount", "mkfs", "size", "cache"})
STATES = Metric("crash_states", "", Better.HIGHER)
LOSING = Metric("losing_states", "", Better.LOWER)
REPAIRED = Metric("repaired_states", "", Better.LOWER)
ALL = (LOSING, STATES, REPAIRED)


def to_measurements(found: Proven) -> list[Measurement]:
    """Returns the measurements that a trial gets from its proof."""
    return metrics.to_measurements(
        [(STATES, float(found.states)), (LOSING, float(found.losing)), (REPAIRED, float(found.repaired))]
    )


def _parse_limit(text: str) -> float | None:
    return parse_duration(text) if text else None


class PowercutParams(Params, frozen=True, kw_only=True):
    """Parameters: how records are written, and how the crash states are judged.

    Each of `records` is written and made durable by `method`; `states` is the number of crash states to judge: by
    default 300, or 40 for a database server, which has to be started for each. `settings` are the server's. The
    method `command` runs `command`, whose lines are acknowledgements, and `check` on each state. The method `syncs`
    runs `command`, whose own calls of `fsync` and the like are acknowledgements; `before` are shell commands that run
    first, `files` are texts by name, `env` holds variables besides the caller's, `cwd` is where it runs if not on the
    disk.
    """

    method: Annotated[
        str,
        param(
            "how records are made durable",
            accepts=Literal[
                "append",
                "replace",
                "overwrite",
                "dsync",
                "sqlite",
                "mariadb",
                "postgresql",
                "command",
                "syncs",
            ],
            default="append",
        ),
    ]
    records: Annotated[int, param("number of records", default=100, ge=2, le=100_000)]
    settings: Annotated[dict[str, str], param("settings of the database server")] = {}
    command: Annotated[
        list[str], param("program of the methods `command` and `syncs`", "list of arguments")
    ] = []
    check: Annotated[str, param("judges each recovered disk, for the method `command`", "shell command")] = ""
    acknowledge: Annotated[
        str,
        param(
            "output lines of the command that count as acknowledgements; by default every line",
            "regular expression",
        ),
    ] = ""
    needs: Annotated[
        str, param("command that succeeds if the program is installed here", "shell command")
    ] = ""
    package: Annotated[str, param("package to install if `needs` fails")] = ""
    promise: Annotated[str, param("durability that the program's documentation promises, for the table")] = ""
    published: Annotated[int | None, param("faults that an earlier study found, for the table")] = None
    before: Annotated[list[str], param("commands to run before the command", "shell commands")] = []
    files: Annotated[dict[str, str], param("contents of files in the command's directory, by name")] = {}
    env: Annotated[dict[str, str], param("environment variables")] = {}
    cwd: Annotated[str, param("directory in which the command runs; by default one on the disk", "path")] = ""
    statuses: Annotated[
        tuple[int, ...], param("exit statuses that mean success", accepts=list[int], default=[0], parse=tuple)
    ] = (0,)
    states: Annotated[
        int,
        param(
            "crash states to judge; by default 300, and 40 for a database server",
            accepts=int | None,
            default=None,
            ge=1,
            le=100_000,
        ),
    ]
    check_limit_s: Annotated[
        float | None,
        param(
            "time that the check may take for one disk; by default ten times as long as without a cut",
            "duration",
            key="check_limit",
            accepts=str,
            default="",
            parse=_parse_limit,
        ),
    ] = None
    words: str  # describes how records are made durable, or the command
    disks: list[dict[str, Any]]

    @classmethod
    def make(cls, *, states: int | None, **given: Any) -> PowercutParams:
        """Creates the parameters and derives the disk; on the host it is an image mounted through a loop device.

        Raises `ValueError` for parameters of another method.
        """
        method, command, check = Method(given["method"]), given["command"], given["check"]
        if given["settings"] and not method.is_served:
            raise ValueError(f"settings are for a database server, and the method {method.value} runs none")
        if bool(command) != method.is_program:
            raise ValueError("the methods command and syncs need a command; other methods take none")
        if bool(check) != (method is Method.COMMAND):
            raise ValueError("the method command needs a check; other methods take none")
        if (given["check_limit_s"] is not None or given["acknowledge"]) and not check:
            raise ValueError("check_limit and acknowledge need a check")
        disk: dict[str, Any] = {"role": "target", "host": "loop", "logged": True}
        if method.is_served or method.is_program:
            disk["size"] = _OF_PROGRAMS if method.is_program else _OF_DATABASES
        return cls(
            states=states or (_OF_SERVERS if method.is_served else _STATES),
            words=shlex.join(command) or method.description,
            disks=[disk],
            **given,
        )

    def to_stored(self) -> dict[str, Any]:
        """Returns all parameters, including those that are None, as ledgers have always had them."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return {**plain, "statuses": list(self.statuses)}


class PowercutWorkload(Workload[PowercutParams]):
    """Judges the crash states of a disk."""

    name = "powercut"
    help = "simulates a power cut at each moment of a log of writes, and searches for acknowledged data"
    measures = ALL
    proves = True
    compared = False

    @classmethod
    def describe_params(cls, params: PowercutParams) -> str:
        """Returns how records are made durable."""
        return f"power cut: {params.words}"

    @classmethod
    def adapts_to_time(cls, params: PowercutParams) -> bool:
        """Returns whether it judges fewer states if time is short, which only a user's check makes necessary."""
        return bool(params.check)

    @classmethod
    def decides_factor(cls, params: PowercutParams, factor: str, platform: PlatformSpec) -> bool | None:
        """Accepts, on the host, the factors that an image on a loop device can have."""
        return True if not platform.is_guest and factor in _OF_IMAGE else None

    @classmethod
    def trial_class(cls) -> type[Workload[PowercutParams]]:
        """Imports and returns the class of its trials; done late because its imports are slow."""
        from guestmark.workloads.powercut.trial import PowercutTrial

        return PowercutTrial

    @classmethod
    def report_sections(cls) -> tuple[Sections, ...]:
        """Adds the results of the crash states."""
        from guestmark.workloads.powercut.sections import render_proofs

        return (render_proofs,)

    @classmethod
    def report_conclusion(cls) -> Sections | None:
        """Returns the section that states what would be left on each disk."""
        from guestmark.workloads.powercut.sections import conclude_proofs

        return conclude_proofs
