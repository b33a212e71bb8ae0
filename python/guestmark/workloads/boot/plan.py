"""The plan of `guestmark boot`: guests, and on request libguestfs's, side by side in one table."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from guestmark.core.errors import UsageError
from guestmark.core.model import Plan, Policy, WorkloadSpec
from guestmark.core.platform_spec import parse_platforms
from guestmark.plan.matrix import Entry, Null, Shape
from guestmark.plan.outline import Outline, Overrides, assemble, override
from guestmark.workloads.boot import kind as boot_kind
from guestmark.workloads.boot import metrics as boot_metrics

_ACCELERATORS = ("tcg", "kvm")
_TITLE = "start and end of a guest"


def build(
    given: Overrides, command: Sequence[str], *, initcalls: bool, guestfish: bool, caller: Mapping[str, Any]
) -> Plan:
    """The plan for booting `given.on`. Raises `UsageError` for anything that cannot be meant."""
    specs = parse_platforms(given.on or ())
    try:
        params = boot_kind.BOOT.params({"command": list(command), "initcalls": initcalls})
    except ValueError as error:
        raise UsageError(f"the command cannot be run: {error}") from error
    entries = [_entry(boot_kind.BOOT.name, params, "boot" if guestfish else "")]
    if guestfish:
        accelerated = tuple(
            spec
            for spec in dict.fromkeys(specs)
            if spec.inner.kind in _ACCELERATORS and len(spec.layers) <= 2
        )
        if not accelerated:
            raise UsageError("--guestfish: libguestfs runs on tcg and kvm only", hint="add --on tcg")
        peer = _entry(boot_kind.GUESTFS_RUN.name, boot_kind.GUESTFS_RUN.params({}), "guestfish")
        entries.append(replace(peer, platforms=accelerated))
    within = () if guestfish else None
    shape = Shape(tuple(entries), specs, within=within, title=_TITLE)
    policy = Policy(warmup=0, iterations=1, precision=0.05, margin=0.05)
    null = given.null or Null.NONE  # another boot of each block, which most who ask for phases do not want
    outline = Outline("boot", shape, policy, boot_metrics.ALL)
    return assemble(override(outline, replace(given, null=null)), caller)


def _entry(name: str, params: Mapping[str, Any], key: str) -> Entry:
    kind = boot_kind.BOOT if name == boot_kind.BOOT.name else boot_kind.GUESTFS_RUN
    return Entry(WorkloadSpec(name, params, kind.label(params), key), takes=kind.takes)
