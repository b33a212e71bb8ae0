"""What one process of guestmark asks of another arrives as it was sent: every workload, factor and platform."""

from collections.abc import Iterator

import msgspec
import pytest

from guestmark.core import registry
from guestmark.core.architectures import ARCHITECTURES
from guestmark.core.cause import Cause
from guestmark.core.context import Caller
from guestmark.core.model import Cell, WorkloadSpec
from guestmark.core.platform_spec import HOST, PlatformSpec
from guestmark.core.trial_order import TrialOrder
from guestmark.core.workload_kind import index_workload_kinds
from guestmark.plan import library
from guestmark.plan.load import load_outline
from guestmark.plan.outline import assemble_plan
from guestmark.workloads.netboot import Netboot, inside
from guestmark.workloads.netboot.nested import Failed, Reply
from tests.framework.runs import EXEC


def cells_of(name: str) -> tuple[Cell, ...]:
    """The cells of a built-in plan."""
    return assemble_plan(load_outline(library.read_builtin(name), name), Caller()).cells


def planned_cells() -> Iterator[Cell]:
    """Every cell of every built-in plan: between them they have every kind of parameters."""
    for name in library.list_plan_names():
        yield from cells_of(name)


def arrived(cell: Cell) -> TrialOrder:
    """The order for the cell's trial, on the other side."""
    return TrialOrder.decode(TrialOrder.from_cell(cell, 30.0).encode())


@pytest.mark.parametrize("name", library.list_plan_names())
def test_every_cell_of_a_built_in_plan_arrives(name: str) -> None:
    for cell in cells_of(name):
        order = arrived(cell)
        there = order.make_cell()
        assert (there.platform, there.factors, there.processors) == (
            cell.platform, dict(cell.factors), cell.processors,
        )  # fmt: skip
        # By name, too: whatever is missing has its default, which may be what was asked for.
        assert dict(there.workload.params) == dict(cell.workload.params)
        kind = index_workload_kinds()[cell.workload.name]
        assert kind.params_of(there.workload) == kind.params_of(cell.workload)
        assert order.make_plan().metrics == kind.metrics_of(cell.workload)


def test_the_plans_have_every_workload() -> None:
    planned = {cell.workload.name for cell in planned_cells()}
    without_plan = set(index_workload_kinds()) - planned
    for name in without_plan:
        try:
            params = index_workload_kinds()[name].check_params({})
        except ValueError:
            continue  # what it needs is the user's
        spec, kind = WorkloadSpec(name, params), index_workload_kinds()[name]
        there = arrived(Cell("it", spec, HOST))
        assert kind.params_of(there.make_cell().workload) == kind.params_of(spec)


def test_every_level_of_every_factor_arrives() -> None:
    for factor in registry.factors().values():
        for level in factor.levels:
            cell = Cell("it", EXEC, PlatformSpec.read("tcg"), {factor.name: level})
            assert arrived(cell).make_cell().factors == cell.factors


NESTED = ("tcg/kvm", "tcg/tcg/uml", "ssh:user@lab/kvm")


@pytest.mark.parametrize(
    "platform", [*registry.index_platform_kinds(), *NESTED, *(f"tcg@{name}" for name in ARCHITECTURES)]
)
def test_every_platform_arrives(platform: str) -> None:
    spec = PlatformSpec.read(platform)
    assert arrived(Cell("it", EXEC, spec)).make_cell().platform == spec


def test_an_order_of_another_version_is_refused() -> None:
    plain = msgspec.json.decode(TrialOrder.from_cell(Cell("it", EXEC, HOST), 1.0).encode())
    for wrong in ({**plain, "more": 1}, {key: value for key, value in plain.items() if key != "params"}):
        with pytest.raises(msgspec.ValidationError):
            TrialOrder.decode(msgspec.json.encode(wrong))


@pytest.mark.parametrize("cause", Cause)
def test_why_a_boot_inside_failed_arrives(cause: Cause) -> None:
    sent = Failed(message="no", hint="do", cause=cause, console="said")
    assert msgspec.json.decode(msgspec.json.encode(sent), type=Reply) == sent


def test_a_boot_that_cannot_start_is_answered() -> None:
    """The other side of the order, here: what it lacks is an answer, and no traceback."""
    params = index_workload_kinds()["netboot"].check_params({"size": "4K", "files": 1, "kernel": True})
    cell = Cell("it", WorkloadSpec("netboot", params), PlatformSpec.read("tcg"), {"rom": "/nonexistent"})
    reply = inside.measure_boot(arrived(cell))
    assert isinstance(reply, Failed)
    assert "/nonexistent" in reply.message
    assert msgspec.json.decode(msgspec.json.encode(Netboot()), type=Netboot) == Netboot()
