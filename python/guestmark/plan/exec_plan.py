"""The plan of `guestmark exec`: one command on several platforms."""

import os
import secrets
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from guestmark.errors import UsageError
from guestmark.plan import factors
from guestmark.plan.matrix import Null, expand
from guestmark.plan.metric_spec import DEFAULT_METRICS, parse_metrics
from guestmark.plan.model import Plan, Policy, WorkloadSpec
from guestmark.plan.platform_spec import parse_platforms

STDIN_LIMIT = 64 * 1024 * 1024  # bytes; kept in memory and sent to every machine


@dataclass(frozen=True, slots=True)
class ExecOptions:
    """What the user gave to `exec`; None means the policy's default."""

    on: Sequence[str] = ("host",)
    baseline: str | None = None
    settings: Sequence[str] = ()
    null: Null = Null.BASELINE
    blocks: int | None = None
    precision: float | None = None
    margin: float | None = None
    time_limit_s: float | None = None
    trial_limit_s: float | None = None
    warmup: int | None = None
    iterations: int | None = None
    metrics: Sequence[str] = ()
    seed: int | None = None
    stdin_path: str | None = None
    ignore_failure: bool = False
    caller: Mapping[str, Any] = field(default_factory=dict)  # cwd, env, uid, gid, groups


def build(options: ExecOptions, argv: Sequence[str]) -> Plan:
    """The plan for running `argv`. Raises `UsageError` for anything that cannot be meant."""
    if not argv or not argv[0]:
        raise UsageError("no command is given", hint="e.g. guestmark exec --on host,uml -- sysbench cpu run")
    if any("\0" in argument for argument in argv):
        raise UsageError("the command holds a NUL character", hint="no program can be given one")
    if options.blocks is not None and options.precision is not None:
        raise UsageError("--blocks and --precision exclude each other", hint="give one of them")
    specs = parse_metrics(options.metrics)
    params: dict[str, Any] = {"argv": list(argv)}
    if specs:
        params["metrics"] = [spec.to_params() for spec in specs]
    if options.stdin_path is not None:
        params["stdin"] = _describe_stdin(options.stdin_path)
    if options.ignore_failure:
        params["ignore_failure"] = True
    workload = WorkloadSpec("exec", params, shlex.join(argv))
    matrix = expand(
        workload,
        parse_platforms(options.on),
        factors.parse_settings(options.settings),
        baseline=options.baseline,
        null=options.null,
    )
    if options.blocks is None and options.time_limit_s == 0:
        raise UsageError("--time-limit must be above 0", hint="e.g. --time-limit 10m")
    context = {**options.caller, "notes": list(matrix.notes)}
    metrics = (*(spec.metric for spec in specs), *DEFAULT_METRICS)
    return Plan("exec", matrix.cells, _policy(options), metrics, context)


def _policy(options: ExecOptions) -> Policy:
    given = {
        "blocks": options.blocks,
        "precision": options.precision,
        "margin": options.margin,
        "time_limit_s": options.time_limit_s,
        "trial_limit_s": options.trial_limit_s,
        "warmup": options.warmup,
        "iterations": options.iterations,
        "seed": options.seed if options.seed is not None else secrets.randbits(32),
    }
    return Policy(**{name: value for name, value in given.items() if value is not None})  # type: ignore[arg-type]


def _describe_stdin(path: str) -> dict[str, Any]:
    data = read_stdin(path)
    import hashlib

    return {"path": os.path.abspath(path), "size": len(data), "sha256": hashlib.sha256(data).hexdigest()}  # noqa: PTH100


def read_stdin(path: str) -> bytes:
    """The bytes of `--input FILE`. Raises `UsageError` when it cannot be read or is larger than `STDIN_LIMIT`."""
    try:
        with open(path, "rb") as stream:  # noqa: PTH123
            data = stream.read(STDIN_LIMIT + 1)
    except OSError as error:
        raise UsageError(f"--input {path}: {error.strerror or error}", hint="give a readable file") from error
    if len(data) > STDIN_LIMIT:
        raise UsageError(
            f"--input {path} is larger than {STDIN_LIMIT // 1024**2} MiB",
            hint="let the command open the file itself: guests see the host's files",
        )
    return data
