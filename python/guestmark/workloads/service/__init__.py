"""The workload `service`: the user's server and a client that measures it, across a network or on one machine.

The metrics are values that the client prints; `wall_s` is its run time.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any

import msgspec

from guestmark.core import regex
from guestmark.core.findings import Fact
from guestmark.core.metric import Metric
from guestmark.core.metric_spec import WALL, MetricSpec, parse_metrics, split_metrics
from guestmark.core.params import Params, param
from guestmark.core.units import parse_duration
from guestmark.workloads.base import Workload
from guestmark.workloads.common.program import find_program_packages
from guestmark.workloads.exec.command import check_runnable

_PLACEHOLDERS = ("address", "port", "directory")
_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}", re.ASCII)
# Ports that are forwarded to a machine by networks that forward ports.
_FIRST_PORT = 20000


class Side(StrEnum):
    """Where server and client run."""

    # The server on the machine, the client on its peer.
    MACHINE = "machine"
    # The server on the peer, the client on the machine.
    PEER = "peer"
    # Both on the machine, over its loopback.
    SAME = "same"


def _check_words(words: list[str]) -> list[str]:
    for word in check_runnable(words):
        for name in re.findall(r"\{([a-z]+)\}", word):
            if name not in _PLACEHOLDERS:
                raise ValueError(
                    f"{{{name}}} is not a placeholder; those are {{address}}, {{port}} and {{directory}}"
                )
    return words


def _check_optional_words(words: list[str] | None) -> list[str] | None:
    return None if words is None else _check_words(words)


def _check_files(files: dict[str, str]) -> dict[str, str]:
    for name in files:
        if not _FILE_NAME.fullmatch(name):
            raise ValueError(f"{name!r} is not a valid file name")
    return files


def _check_expression(text: str | None) -> str | None:
    try:
        regex.read_groups(text or "")
    except regex.PatternError as error:
        raise ValueError(f"not a valid regular expression: {error}") from error
    return text


def _check_ready_within(time: str) -> str:
    if not 0 < parse_duration(time) <= 600:
        raise ValueError(f"{time!r} is not between 0 and 10 min")
    return time


class ServiceParams(Params, frozen=True, kw_only=True, omit_defaults=True):
    """Starts `server`, waits until it accepts a connection and `ready` succeeds, runs `load`, then `client`.

    In all of these, `{address}`, `{port}` and `{directory}` stand for the server's address as the client dials it (for
    the server itself all addresses, 0.0.0.0, but 127.0.0.1 if its client is beside it), its port, and a new directory
    of the server, in memory, with `files` in it.
    """

    server: Annotated[
        list[str], param("the server and its arguments", "list of arguments", parse=_check_words)
    ]
    client: Annotated[
        list[str], param("the client and its arguments", "list of arguments", parse=_check_words)
    ]
    side: Annotated[Side, param("where the server runs", accepts=Side, strict=False)] = Side.MACHINE
    port: Annotated[int, param("TCP port of the server", ge=1, le=65535)] = _FIRST_PORT
    metrics: Annotated[
        list[dict[str, Any]],
        param("metrics in the client's output, in the form of `--metric`", accepts=list[str], default=[]),
    ] = []
    setup: Annotated[
        list[str] | None,
        param(
            "command that runs once, on the server's side, before the server starts",
            "list of arguments",
            parse=_check_optional_words,
        ),
    ] = None
    load: Annotated[
        list[str] | None,
        param(
            "command that runs once, on the client's side, when the server is ready",
            "list of arguments",
            parse=_check_optional_words,
        ),
    ] = None
    files: Annotated[dict[str, str], param("files in the server's directory", parse=_check_files)] = {}
    errors: Annotated[
        str | None,
        param(
            "expression that matches the client's output if the server has answered with errors",
            "regular expression",
            parse=_check_expression,
        ),
    ] = None
    ready: Annotated[
        list[str] | None,
        param(
            "command on the client's side that succeeds once the server is ready, if a connection is not enough",
            "list of arguments",
            parse=_check_optional_words,
        ),
    ] = None
    ready_within: Annotated[
        str, param("longest time until the server is ready", "duration", parse=_check_ready_within)
    ] = "30s"
    nobody: Annotated[
        bool, param("when root runs guestmark, run the server and its set-up as the user nobody")
    ] = False

    @classmethod
    def make(cls, *, metrics: list[str], **given: Any) -> ServiceParams:
        """Creates the parameters from a plan's values. Raises `UsageError`, `ValueError`."""
        specs, derived = split_metrics(parse_metrics(metrics))
        if derived:
            raise ValueError(f"metrics.{derived[0].metric.name}: in a plan, arithmetic belongs in [derived]")
        for spec in specs:
            if spec.event is not None or spec.file:
                raise ValueError(
                    f"metrics.{spec.metric.name}: a service's metrics must come from its client's output"
                )
        return cls(metrics=[spec.to_params() for spec in specs], **given)

    @property
    def metric_specs(self) -> list[MetricSpec]:
        """The metrics that the user defined."""
        return [MetricSpec.from_params(spec) for spec in self.metrics]


class Served(Fact, kw_only=True):
    """The server of one trial."""

    side: str = msgspec.field(name="service_side")
    address: str = msgspec.field(name="service_address")
    port: int = msgspec.field(name="service_port")
    ready_s: float | None = msgspec.field(name="service_ready_s", default=None)
    # Other TCP ports on which it or its children listen.
    other_ports: list[int] = msgspec.field(name="service_other_ports", default_factory=list)


class ServiceWorkload(Workload[ServiceParams]):
    """Runs the user's server and its client."""

    name = "service"
    help = "runs your server on the machine or its peer, and measures what its client prints"

    @classmethod
    def list_metrics(cls, params: ServiceParams) -> tuple[Metric, ...]:
        """Returns the user's metrics, then the client's run time."""
        return (*(spec.metric for spec in params.metric_specs), WALL)

    @classmethod
    def describe_params(cls, params: ServiceParams) -> str:
        """Names the server's program and the client's command."""
        return f"{params.server[0]}, with the client {shlex.join(params.client)}"[:80]

    @classmethod
    def find_packages(cls, params: ServiceParams) -> tuple[str, ...]:
        """Returns the packages that contain the server's and the client's program."""
        found = [*find_program_packages(params.server[0]), *find_program_packages(params.client[0])]
        return tuple(dict.fromkeys(found))

    @classmethod
    def user_command(cls, params: ServiceParams) -> Sequence[str]:
        """Returns the server's command as a list of arguments."""
        return params.server

    @classmethod
    def trial_class(cls) -> type[Workload[ServiceParams]]:
        """Imports and returns the class of its trials; done late because its imports are slow."""
        from guestmark.workloads.service.trial import ServiceTrial

        return ServiceTrial


def substitute(words: Sequence[str], values: Mapping[str, str]) -> list[str]:
    """Returns the arguments with their placeholders replaced by values."""
    done = list(words)
    for name, value in values.items():
        done = [word.replace(f"{{{name}}}", value) for word in done]
    return done
