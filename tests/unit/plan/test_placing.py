"""Where machines run when nobody says: parity of processors, ids that do not grow, remarks on what is unequal."""

import pytest

from guestmark.core.context import Caller
from guestmark.core.model import Cell, Plan, Policy, WorkloadSpec
from guestmark.core.platform_spec import PlatformSpec, parse_platforms
from guestmark.core.registry import index_workload_kinds
from guestmark.ledger import codec
from guestmark.plan.matrix import Entry as MatrixEntry
from guestmark.plan.matrix import NullCells, Shape
from guestmark.plan.outline import Outline, Overrides, assemble_plan, override_outline

TRUE = WorkloadSpec("exec", {"argv": ["true"]}, "true")


def plan(
    on: str,
    *settings: str,
    null: NullCells = NullCells.NONE,
    blocks: int | None = None,
    work: WorkloadSpec = TRUE,
) -> Plan:
    kind = index_workload_kinds()[work.name]
    outline = Outline(
        "exec", Shape((MatrixEntry(work, kind=kind),), parse_platforms([on]), null=null), Policy(), ()
    )
    return assemble_plan(override_outline(outline, Overrides(settings=settings, blocks=blocks)), Caller())


def processors(on: str, *settings: str) -> dict[str, int]:
    return {cell.id: cell.processors for cell in plan(on, *settings).cells}


def test_machines_are_pinned_and_ids_do_not_say_so() -> None:
    cells = plan("host,tcg,uml,tcg/uml", null=NullCells.BASELINE).cells
    assert [cell.id for cell in cells] == ["host", "tcg", "uml", "tcg/uml", "host#2"]
    assert {cell.factors["placement"] for cell in cells} == {"pinned"}


def test_levels_that_were_asked_for_are_in_the_id_and_span_the_matrix() -> None:
    assert [cell.id for cell in plan("uml", "placement=free,pinned").cells] == [
        "uml placement=free",
        "uml placement=pinned",
    ]


def test_machines_that_are_there_at_once_share_all_processors_and_nothing_is_remarked() -> None:
    fleets = plan(
        "host,uml,tcg", work=WorkloadSpec("density", index_workload_kinds()["density"].check_params({}))
    )
    assert {cell.factors["placement"] for cell in fleets.cells} == {"free"}
    assert not [note for note in fleets.context.notes if "processors" in note]
    work = WorkloadSpec("coldstart", index_workload_kinds()["coldstart"].check_params({}))
    starts = plan("host,tcg", "pattern=one,burst-4,every-50ms", work=work)
    assert {cell.factors["pattern"]: cell.factors["placement"] for cell in starts.cells} == {
        "one": "pinned",
        "burst-4": "free",
        "every-50ms": "free",
    }
    assert not [note for note in starts.context.notes if "processors" in note]
    asked = plan("tcg", "placement=cpus=0", work=fleets.cells[0].workload)
    assert asked.cells[0].factors["placement"] == "cpus=0"


@pytest.mark.parametrize(
    ("on", "settings", "found"),
    [
        ("host,tcg,uml", (), {"host": 1, "tcg": 1, "uml": 1}),
        ("host,tcg", ("smp=2",), {"host": 2, "tcg smp=2": 2}),
        ("host,tcg,uml", ("smp=2",), {"host": 2, "tcg smp=2": 2, "uml": 1}),
        ("host,tcg", ("smp=1,2",), {"host": 1, "tcg smp=1": 1, "tcg smp=2": 2}),
        ("host", (), {"host": 0}),
    ],
)
def test_the_host_gets_what_the_guests_get(on: str, settings: tuple[str, ...], found: dict[str, int]) -> None:
    assert processors(on, *settings) == found


def test_unequal_machines_are_remarked_on() -> None:
    assert not plan("host,tcg,uml").context.notes
    assert plan("host,tcg,uml", "smp=2").context.notes[-1] == (
        "the machines that are compared have different numbers of processors: 1 in uml; 2 in host, tcg smp=2"
    )


def test_of_many_cells_those_that_differ_are_named() -> None:
    remark = plan("host,tcg,uml", "smp=1,2", "memory=1G,2G,3G").context.notes[-1]
    assert remark.endswith("; 2 in tcg smp=2 memory=1G, tcg smp=2 memory=2G, tcg smp=2 memory=3G"), remark
    assert "1 in all others" in remark


@pytest.mark.parametrize(
    ("memory", "blocks", "needed"), [(1, 6, None), (1, 5, None), (3, 6, 7), (3, 7, None), (3, 3, None)]
)
def test_too_few_blocks_for_so_many_cells_are_told_beforehand(
    memory: int, blocks: int, needed: int | None
) -> None:
    sizes = ",".join(f"{size}G" for size in range(1, memory + 1))
    remarks = [
        f"{memory} cells are compared with one: if a single one differs, showing that takes {needed} "
        f"blocks or more (--blocks {needed})"
    ]
    notes = plan("host,tcg", f"memory={sizes}", blocks=blocks).context.notes
    assert [note for note in notes if "blocks" in note] == (remarks if needed else [])


def test_cells_that_were_stored_before_have_no_place() -> None:
    stored = codec.to_plain(plan("uml").cells[0])
    del stored["processors"], stored["factors"]["placement"]
    cell = codec.load_json(codec.dump_json(stored), Cell, "a cell")
    assert (cell.processors, dict(cell.factors)) == (0, {})


@pytest.mark.parametrize("platform", ["uml", "tcg"])
@pytest.mark.parametrize("name", list(index_workload_kinds()))
def test_machines_of_every_workload_have_their_place(name: str, platform: str) -> None:
    assert index_workload_kinds()[name].accepts_factor("placement", PlatformSpec.read(platform))
