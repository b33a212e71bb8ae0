"""The plan of `guestmark exec`: one command on several platforms."""

import os
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from guestmark.core.errors import UsageError
from guestmark.core.metric_spec import DEFAULT_METRICS, MetricSpec, parse_metrics
from guestmark.core.model import Plan, Policy, WorkloadSpec
from guestmark.core.platform_spec import parse_platforms
from guestmark.plan.matrix import Entry, Shape
from guestmark.plan.outline import Outline, Overrides, assemble, override

STDIN_LIMIT = 64 * 1024 * 1024  # bytes; kept in memory and sent to every machine


@dataclass(frozen=True, slots=True)
class ExecOptions(Overrides):
    """What the user gave to `exec`; None means the policy's default."""

    on: Sequence[str] = ("host",)
    metrics: Sequence[str] = ()
    stdin_path: str | None = None
    ignore_failure: bool = False
    commands: Sequence[Sequence[str]] = ()  # further ones, to be compared with the first
    names: Sequence[str] = ()  # what tables call the commands
    caller: Mapping[str, Any] = field(default_factory=dict)  # cwd, env, uid, gid, groups


def build(options: ExecOptions, argv: Sequence[str]) -> Plan:
    """The plan for running `argv`. Raises `UsageError` for contradictory or unsupported options."""
    if not argv or not argv[0]:
        raise UsageError("no command is given", hint="e.g. guestmark exec --on host,uml -- sysbench cpu run")
    if any("\0" in argument for argument in argv):
        raise UsageError("the command contains a NUL character", hint="remove it: no program can receive one")
    if options.blocks is None and options.time_limit_s == 0:
        raise UsageError("--time-limit must be above 0", hint="e.g. --time-limit 10m")
    specs = parse_metrics(options.metrics)
    params = exec_params(
        argv,
        specs,
        stdin_path=options.stdin_path,
        ignore_failure=options.ignore_failure,
        parameters=options.parameters,
    )
    shape = Shape((Entry(WorkloadSpec("exec", params, shlex.join(argv))),), parse_platforms(options.on))
    metrics = (*(spec.metric for spec in specs), *DEFAULT_METRICS)
    outline = Outline("exec", shape, Policy(), metrics)
    return assemble(override(outline, options), options.caller)


def exec_params(
    argv: Sequence[str],
    specs: Sequence[MetricSpec] = (),
    *,
    stdin_path: str | None = None,
    ignore_failure: bool = False,
    parameters: Iterable[str] = (),
) -> dict[str, Any]:
    """The parameters of the workload `exec`. Raises `UsageError` when the input cannot be read."""
    params: dict[str, Any] = {"argv": list(argv)}
    if specs:
        params["metrics"] = [spec.to_params() for spec in specs]
    if stdin_path is not None:
        params["stdin"] = _describe_stdin(stdin_path)
    if named := [name for name in parameters if any("{" + name + "}" in word for word in argv)]:
        params["parameters"] = named
    if ignore_failure:
        params["ignore_failure"] = True
    return params


def _describe_stdin(path: str) -> dict[str, Any]:
    data = read_stdin(path)
    import hashlib

    return {"path": os.path.abspath(path), "size": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def read_stdin(path: str) -> bytes:
    """The bytes of `--input FILE`. Raises `UsageError` when it cannot be read or is larger than `STDIN_LIMIT`."""
    try:
        with open(path, "rb") as stream:
            data = stream.read(STDIN_LIMIT + 1)
    except OSError as error:
        raise UsageError(f"--input {path}: {error.strerror or error}", hint="give a readable file") from error
    if len(data) > STDIN_LIMIT:
        raise UsageError(
            f"--input {path} is larger than {STDIN_LIMIT // 1024**2} MiB",
            hint="let the command open the file itself, since guests see the host's files",
        )
    return data
