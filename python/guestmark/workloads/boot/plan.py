"""The plan of `guestmark boot`: guests side by side in one table, with libguestfs's guest on request."""

from collections.abc import Sequence
from dataclasses import replace

from guestmark.core import registry
from guestmark.core.context import Caller
from guestmark.core.errors import UsageError
from guestmark.core.model import Plan, Policy
from guestmark.core.params import Params
from guestmark.core.platform_spec import parse_platforms
from guestmark.plan.matrix import Entry, NullCells, Shape
from guestmark.plan.outline import Outline, Overrides, assemble_plan, override_outline
from guestmark.platforms.qemu.accelerators import ACCELERATORS
from guestmark.workloads import boot
from guestmark.workloads.boot import BootParams, WatchedParts
from guestmark.workloads.exec.command import check_runnable

_PEER = "guestfs-run"
_TITLE = "start and end of a guest"


def build_plan(
    given: Overrides, command: Sequence[str], *, initcalls: bool, guestfish: bool, caller: Caller
) -> Plan:
    """Builds the plan for booting `given.on`. Raises `UsageError` for contradictory or unsupported options."""
    specs = parse_platforms(given.on or ())
    try:
        work = check_runnable(list(command)) if command else []
    except ValueError as error:
        raise UsageError(f"the command cannot be run: {error}") from error
    booted = BootParams(watch=WatchedParts(initcalls), command=work)
    entries = [_make_entry("boot", booted, "boot" if guestfish else "")]
    if guestfish:
        accelerated = tuple(
            spec for spec in dict.fromkeys(specs) if spec.inner.kind in ACCELERATORS and len(spec.layers) <= 2
        )
        if not accelerated:
            raise UsageError("--guestfish: libguestfs runs on tcg and kvm only", hint="add --on tcg")
        peer = _make_entry(_PEER, registry.workload_kind(_PEER).PARAMS(), "guestfish")
        entries.append(replace(peer, platforms=accelerated))
    within = () if guestfish else None
    shape = Shape(tuple(entries), specs, within=within, title=_TITLE)
    policy = Policy(warmup=0, iterations=1, precision=0.05, margin=0.05)
    # A copy of the baseline costs one more boot per block, which is rarely worth it when phases are wanted.
    null = given.null or NullCells.NONE
    outline = Outline("boot", shape, policy, boot.ALL)
    return assemble_plan(override_outline(outline, replace(given, null=null)), caller)


def _make_entry(name: str, params: Params, key: str) -> Entry:
    kind = registry.workload_kind(name)
    return Entry(kind.make_spec(params.to_stored(), key=key), kind=kind)
