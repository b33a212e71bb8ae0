"""What a report says of the hypervisors' counters, and how they are summed over iterations."""

import dataclasses
import io
from collections.abc import Mapping

from rich.cells import cell_len
from rich.console import Console

from guestmark.core.errors import MachineError
from guestmark.core.findings import Counted, Fact
from guestmark.core.model import Cell, WorkloadSpec
from guestmark.core.platform_spec import PlatformSpec
from guestmark.engine.trial import CounterRecorder
from guestmark.page.nodes import Part, Section
from guestmark.report.render.terminal import draw_sections
from guestmark.report.sections import event_counts
from guestmark.report.sections.workloads import make_kind_nodes
from guestmark.stats.analysis import analyse_run
from guestmark.workloads.syscalls import Syscalls
from tests.framework import made_facts
from tests.framework.made_facts import call
from tests.framework.runs import constructed

MIX = WorkloadSpec("syscalls", {}, "system calls")


FACTS: Mapping[str, Fact] = {
    "host": Syscalls(calls={"null": call(186.2), "exec": call(455_000.0)}),
    "uml": Syscalls(calls={"null": call(17_900, uml_stops=1.01), "exec": call(10_800_000, uml_stops=486.2)}),
    "tcg/kvm": Syscalls(
        calls={
            "null": call(870, kvm_exits=0.001, kvm_io_exits=0.0),
            "exec": call(130_000_000, kvm_exits=98.2, kvm_irq_exits=35.6, kvm_io_exits=0.3),
        }
    ),
}


def said(width: int, workload: WorkloadSpec, facts: Mapping[str, Fact | None]) -> str:
    cells = [Cell(name, workload, PlatformSpec.read(name), baseline=name == "host") for name in facts]
    run = constructed([(cell, 1.0) for cell in cells], blocks=2)
    known = {name: made_facts.of(*(() if fact is None else (fact,))) for name, fact in facts.items()}
    trials = [dataclasses.replace(trial, facts=known[trial.cell_id]) for trial in run.trials]
    (result,) = analyse_run(run.plan, trials).workloads
    out = io.StringIO()
    nodes = (*make_kind_nodes(result, run), *event_counts.make_nodes(result, run))
    Console(file=out, width=width).print(
        draw_sections([Section(Part.WORKLOAD, "", nodes, titled=False)], width), highlight=False
    )
    assert all(cell_len(line) <= width for line in out.getvalue().splitlines())
    return "".join(line.rstrip() + "\n" for line in out.getvalue().splitlines())


def test_each_call_has_a_row() -> None:
    assert said(100, MIX, FACTS).splitlines()[1:5] == [
        "      host, ns     uml, ns  stops/op  tcg/kvm, ns  exits/op",
        "─" * 59,
        "null       186      17 900    1.01            870   0.001",
        "exec   455 000  10 800 000  486.2     130 000 000  98.2",
    ]


def test_narrow_terminals_get_several_tables_and_kinds_are_told_in_words() -> None:
    text = said(40, MIX, FACTS)
    assert text.count("null") == 2
    assert "stops: ptrace stops" in text
    said_of_kinds = " ".join(text.split())
    assert (
        "tcg/kvm: KVM counted 98.2 exits for one call of each kind, including irq_exits 35.6" in said_of_kinds
    )
    assert "io_exits" not in said_of_kinds  # a third of a hundredth of them


def test_other_workloads_have_a_sentence_for_each_guest() -> None:
    command = WorkloadSpec("exec", {"argv": ["true"]}, "true")
    counted = {
        "host": Counted(each={}),
        "uml": Counted(each={"uml_stops": 1234.4}),
        "tcg": Counted(each={"tcg_blocks": 5000.0, "tcg_tlb_flushes": 12_345.0, "tcg_flushes": 0.0}),
    }
    assert said(120, command, counted).splitlines() == [
        "In each iteration:",
        "  uml: 1234 ptrace stops",
        "  tcg: 12 345 flushes of an emulated TLB, 5000 blocks of code that TCG translated",
    ]
    assert said(80, command, {"host": None}) == ""


def test_iterations_are_averaged_and_failed_readings_left_out() -> None:
    class Counted:
        """A machine that counts in steps and dies after the fourth reading."""

        readings = 0

        def counters(self) -> Mapping[str, float]:
            self.readings += 1
            if self.readings > 5:
                raise MachineError("gone")
            return {"kvm_exits": float(self.readings**2), **({"late": 1.0} if self.readings % 2 == 0 else {})}

    counting = CounterRecorder(Counted(), apart=False)  # type: ignore[arg-type]
    for _ in range(3):
        counting.begin()
        counting.end()
    assert counting.compute_averages() == {"kvm_exits": ((4 - 1) + (16 - 9)) / 2}
