"""The checks of the conditions that a run was made under, on facts as trials record them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from guestmark.core.cause import Cause
from guestmark.core.findings import (
    Fact,
    Facts,
    Findings,
    ShellStart,
    Storage,
    StoredDisk,
    WorkingDirectory,
    Written,
)
from guestmark.core.machine_facts import (
    GuestMachine,
    HostMachine,
    NestedMachine,
    OuterMachine,
    PlacementFacts,
    Sandboxed,
    Vmm,
    find_attested_placement,
)
from guestmark.core.metric import Better, Measurement, Metric
from guestmark.core.model import Cell, TrialStatus, WorkloadSpec
from guestmark.core.platform_spec import HOST, PlatformSpec
from guestmark.ledger.model import StoredRun
from guestmark.stats import Severity, Verdict
from guestmark.stats.analysis import Analysis, CellResult, analyse_run
from guestmark.stats.compare import WIDENED_REASON, waits_for_processor
from guestmark.stats.validity import Finding
from tests.framework import made_facts
from tests.framework.known import known
from tests.framework.runs import EXEC, constructed

PLACED = PlacementFacts(level="pinned", processors=1, machine="1", emulator="1", control="0", nodes=[0])
HOST_FACTS = HostMachine(kernel="6.1.0", arch="x86_64", boot_id="1", processors=1, placement=PLACED)
ENVIRONMENT: Mapping[str, Any] = {
    "recorded_at": "2026-11-21T21:29:00Z",
    "processor": {"model": "AMD EPYC", "count": 2, "microcode": "0x1000065", "smt": "0"},
    "frequency": {"governor": "performance", "driver": "amd-pstate", "boost": False},
    "kernel": {"release": "6.1.0-41-amd64", "version": "#1 SMP", "command_line": "quiet"},
    "programs": {
        "qemu": "QEMU emulator version 7.2.22 (Debian)",
        "qemu-img": "qemu-img version 7.2.22 (Debian)",
    },
    "guestmark": {"version": "0.2.0", "agent_sha256": "a" * 64},
}


def guest(
    *,
    processors: int = 1,
    kernel: str = "6.1.0",
    qemu: str = "7.2.22",
    placed: PlacementFacts | None = PLACED,
) -> GuestMachine:
    vmm = Vmm(
        accelerator="tcg", kvm_present=True, processors=processors, cpu="max", memory_bytes=1, qemu=qemu
    )
    inside = made_facts.guest().guest
    inside.processors, inside.kernel = processors, kernel
    return GuestMachine(asked={}, guest=inside, vmm=vmm, placement=placed)


def cell(name: str, platform: PlatformSpec = HOST, *, baseline: bool = False, **factors: str) -> Cell:
    return Cell(name, EXEC, platform, {"placement": "pinned"} | factors, baseline, processors=1)


CELLS = (
    (cell("host", baseline=True), 1.0),
    (cell("uml", PlatformSpec.read("uml")), 1.2),
    (cell("tcg", PlatformSpec.read("tcg")), 8.0),
)
FACTS: Mapping[str, Sequence[Fact]] = {"host": [HOST_FACTS], "uml": [guest()], "tcg": [guest()]}


def sound(
    cells: Sequence[tuple[Cell, float]] = CELLS,
    facts: Mapping[str, Sequence[Fact]] | None = None,
    **changes: Any,
) -> StoredRun:
    """A run with nothing wrong: pinned, on a quiet host with a steady clock. Time stamps are a second apart."""
    run = constructed(list(cells), **changes)
    told = {name: made_facts.of(*found) for name, found in (FACTS if facts is None else facts).items()}
    trials = tuple(replace(trial, facts=told.get(trial.cell_id, Facts())) for trial in run.trials)
    return replace(run, trials=trials, environments=(ENVIRONMENT,))


def analysed(run: StoredRun) -> Analysis:
    return analyse_run(run.plan, run.trials, run.unusable, environments=run.environments)


def findings(run: StoredRun) -> dict[str, Finding]:
    found = analysed(run)
    return {finding.name: finding for finding in (*found.findings, *found.workloads[0].findings)}


def refused(run: StoredRun) -> dict[str, str]:
    """The cells that are inconclusive in their primary metric, and why."""
    return {
        result.cell.id: comparison.reason
        for result in analysed(run).cells
        if (comparison := result.comparison.get("wall_s")) is not None
        and comparison.verdict is Verdict.INCONCLUSIVE
    }


def test_a_sound_run_has_no_finding() -> None:
    assert findings(sound()) == {}
    assert refused(sound()) == {}


def test_every_finding_says_what_to_do() -> None:
    runs = [
        with_noise(sound(), "tcg", foreign_s=0.9, machine_processors=1, elapsed_s=1.0),
        with_noise(sound(), "tcg", machine_steal_s=0.9, foreign_s=0.0, machine_processors=1, elapsed_s=1.0),
        with_noise(sound(), "tcg", throttled=3, frequency_mhz=[3000.0, 2000.0]),
        in_memory(named=True),
        in_memory(named=False),
        resumed(kernel={"release": "6.1.0-43-amd64"}),
        replace(
            sound(), environments=({**ENVIRONMENT, "frequency": {"governor": "powersave", "boost": True}},)
        ),
    ]
    found = [finding for run in runs for finding in findings(run).values()]
    assert len({finding.name for finding in found}) >= 7
    for finding in found:
        assert finding.advice
        assert "\n" not in finding.message + finding.advice


# --- processors and placement ---------------------------------------------------------------------------------------


def test_unequal_processors_that_nobody_asked_for_take_the_verdict_back() -> None:
    run = sound(facts={**FACTS, "tcg": [guest(processors=2)]})
    finding = findings(run)["unequal processors"]
    assert (finding.severity, finding.cells) == (Severity.SEVERE, ("tcg",))
    assert "host 1; tcg 2" in finding.message
    assert refused(run) == {"tcg": "unequal processors"}


def test_a_baseline_that_is_unequal_takes_every_verdict_back() -> None:
    host = HostMachine(kernel="6.1.0", arch="x86_64", boot_id="1", processors=2, placement=PLACED)
    assert refused(sound(facts={**FACTS, "host": [host]})).keys() == {"uml", "tcg"}


def test_unequal_processors_that_were_asked_for_are_told_beside_the_figure() -> None:
    cells = [*CELLS[:2], (cell("tcg", PlatformSpec.read("tcg"), smp="2"), 8.0)]
    run = sound(cells, {**FACTS, "tcg": [guest(processors=2)]})
    assert findings(run)["unequal processors"].severity is Severity.WARNING
    assert refused(run) == {}


def test_rows_that_name_their_processors_need_no_warning() -> None:
    """A plan that asks what more processors bring printed a warning under its own question."""
    facts = {**FACTS, "tcg": [guest(processors=2)]}
    named = [(replace(one, factors={**one.factors, "smp": "1"}), ratio) for one, ratio in CELLS[:2]]
    run = sound([*named, (cell("tcg", PlatformSpec.read("tcg"), smp="2"), 8.0)], facts)
    assert findings(run)["unequal processors"].severity is Severity.NOTE
    assert refused(run) == {}


def test_a_placement_that_was_not_attested_takes_the_verdict_back() -> None:
    for placed in (None, replace_placed(level="free")):
        run = sound(facts={**FACTS, "uml": [guest(placed=placed)]})
        assert findings(run)["placement not attested"].severity is Severity.SEVERE
        assert refused(run) == {"uml": "placement not attested"}


def test_the_placement_of_guests_inside_guests_is_that_of_the_outer_one() -> None:
    outer = OuterMachine(
        asked={}, guest=made_facts.guest().guest, placement=PLACED, started_for_each="block", inner_guest=1
    )
    nested = NestedMachine(outer=outer, inner=guest(placed=None))
    assert find_attested_placement(made_facts.of(nested)) == PLACED
    cells = [*CELLS[:2], (cell("tcg", PlatformSpec.read("tcg/kvm")), 8.0)]
    assert findings(sound(cells, {**FACTS, "tcg": [nested]})) == {}


def test_free_machines_are_told_beside_the_figure() -> None:
    free = replace_placed(level="free", machine="0-1")
    cells = [*CELLS[:2], (cell("tcg", PlatformSpec.read("tcg"), placement="free"), 8.0)]
    run = sound(cells, {**FACTS, "tcg": [guest(placed=free)]})
    assert findings(run).keys() == {"placement free"}
    assert findings(run)["placement free"].message.startswith("tcg ran wherever")
    assert refused(run) == {}


def test_a_machine_that_was_not_held_in_its_place() -> None:
    run = sound(failing={("tcg", 3)})
    trials = [
        replace(trial, cause=Cause.PLACEMENT) if trial.status is TrialStatus.FAILED else trial
        for trial in run.trials
    ]
    finding = findings(replace(run, trials=tuple(trials)))["placement not held"]
    assert finding.severity is Severity.WARNING
    assert "1 of 36 trials" in finding.message


def test_machines_that_moved_and_processors_that_are_shared() -> None:
    later = made_facts.of(guest(placed=replace_placed(machine="3")))
    run = sound(
        facts={**FACTS, "uml": [guest(placed=replace_placed(remarks=["2 virtual processors share 1"]))]}
    )
    trials = [
        replace(trial, facts=later) if (trial.cell_id, trial.block) == ("tcg", 7) else trial
        for trial in run.trials
    ]
    found = findings(replace(run, trials=tuple(trials)))
    assert found["placement changed"].message == "tcg ran on CPU 1 and later on CPU 3"
    assert found["placement shared"].message == "uml: 2 virtual processors share 1"


def test_runs_from_before_there_were_placements_keep_their_verdicts() -> None:
    old = [(replace(one, factors={}, processors=0), ratio) for one, ratio in CELLS]
    host = HostMachine(kernel="6.1.0", arch="x86_64", boot_id="1", processors=2)
    run = sound(old, {"host": [host], "uml": [guest(placed=None)], "tcg": [guest(placed=None)]})
    assert {name: finding.severity for name, finding in findings(run).items()} == {
        "placement unknown": Severity.NOTE,
        "unequal processors": Severity.WARNING,
    }
    assert refused(run) == {}


def test_machines_that_are_there_at_once_may_be_wherever_there_is_room() -> None:
    facts = {**FACTS, "tcg": [guest(placed=replace_placed(level="free"), processors=2)]}
    levels = {"placement": "free"}
    alone = [(replace(one, factors=levels), ratio) for one, ratio in CELLS]
    assert {"unequal processors", "placement free"} <= findings(sound(alone, facts)).keys()
    fleet = WorkloadSpec("density", {})
    many = [(replace(one, factors=levels, workload=fleet), ratio) for one, ratio in CELLS]
    assert not {"unequal processors", "placement free"} & findings(sound(many, facts)).keys()


def test_whoever_measures_other_machines_is_not_told_to_place_them() -> None:
    there = [
        (replace(one, platform=PlatformSpec.read("ssh:lab1"), factors={}, processors=0), ratio)
        for one, ratio in CELLS
    ]
    assert "placement unknown" not in findings(sound(there, {}))


def test_other_machines_have_the_processors_that_they_have() -> None:
    there = replace(
        CELLS[2][0], id="ssh:lab1", platform=PlatformSpec.read("ssh:lab1"), factors={}, processors=0
    )
    run = sound(
        (*CELLS[:2], (there, 1.2)),
        {**FACTS, "ssh:lab1": [HostMachine(kernel="6.1.0", arch="x86_64", boot_id="1", processors=4)]},
    )
    found = findings(run)["unequal processors"]
    assert found.severity is Severity.WARNING
    assert found.message.endswith("host 1; ssh:lab1 4 (other machines keep their own number)")
    assert refused(run) == {}


def test_what_runs_here_takes_nothing_from_other_machines() -> None:
    there = replace(
        CELLS[2][0], id="ssh:lab1", platform=PlatformSpec.read("ssh:lab1"), factors={}, processors=0
    )
    cells = (*CELLS[:2], (there, 1.2))
    busy = {"foreign_s": 0.9, "machine_processors": 1, "elapsed_s": 1.0}
    assert "foreign load" not in findings(with_noise(sound(cells), "ssh:lab1", **busy))
    assert "foreign load" in findings(with_noise(sound(cells), "uml", **busy))


def replace_placed(**changes: Any) -> PlacementFacts:
    import msgspec

    return msgspec.structs.replace(PLACED, **changes)


# --- storage --------------------------------------------------------------------------------------------------------


def in_memory(*, named: bool) -> StoredRun:
    stored = Storage(disks={"": StoredDisk(location="/dev/shm", filesystem="tmpfs", in_memory=True)})
    run = sound(facts={**FACTS, "tcg": [guest(), stored]})
    context = replace(run.plan.context, default_locations=() if named else ("uml", "tcg"))
    return replace(run, plan=replace(run.plan, context=context))


def test_storage_in_memory_is_refused_unless_it_was_asked_for() -> None:
    asked, unasked = in_memory(named=True), in_memory(named=False)
    assert findings(asked)["storage in memory"].severity is Severity.WARNING
    assert refused(asked) == {}
    assert findings(unasked)["storage in memory"].severity is Severity.SEVERE
    assert refused(unasked) == {"tcg": "storage in memory"}


# --- where it writes ------------------------------------------------------------------------------------------------


def on_ground(filesystem: str) -> WorkingDirectory:
    return WorkingDirectory(
        path="/srv", mounted_at="/", filesystem=filesystem, source="x", number="8:1", options="rw"
    )


SANDBOXED = Sandboxed(
    kernel="6.1.0", arch="x86_64", boot_id="1", processors=1, placement=PLACED, runtime="crun", version="1", root="",
    proc_version="", namespaces=["mnt"], seccomp="off", filters=0, no_new_privileges=True, capabilities=0, users="",
)  # fmt: skip


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ([SANDBOXED, on_ground("overlay")], "uml to an overlay in memory"),
        ([SANDBOXED, on_ground("9p")], "uml to an overlay in memory"),  # gVisor's
        ([SANDBOXED, on_ground("tmpfs")], "uml to memory"),
        ([guest(), on_ground("overlay")], "uml to an overlay in memory"),
        ([guest(), on_ground("virtiofs")], "uml to a share"),
        ([HOST_FACTS, on_ground("overlay")], "uml to an overlay"),
        ([HOST_FACTS, on_ground("fuse.sshfs")], "uml to a share"),
        ([guest(), on_ground("ext4")], ""),
        ([guest()], ""),
    ],
)
@pytest.mark.parametrize("least", [0, 4096])
def test_rows_that_write_to_different_ground_are_named(facts: Sequence[Fact], said: str, least: int) -> None:
    host = [HOST_FACTS, on_ground("ext4"), Written(least=least)]
    found = findings(sound(facts={"host": host, "uml": facts, "tcg": [guest(), on_ground("xfs")]}))
    if not said or not least:
        assert "different ground" not in found
        return
    one = found["different ground"]
    assert one.severity is Severity.WARNING
    assert one.message == f"the command writes to different storage: host, tcg to a disk; {said}"


def test_commands_that_write_to_memory_everywhere_have_one_ground() -> None:
    everywhere = {name: [*made, on_ground("tmpfs"), Written(least=0)] for name, made in FACTS.items()}
    assert "different ground" not in findings(sound(facts=everywhere))


# --- shells ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("start_s", "severity"), [(0.5, None), (1.5, Severity.WARNING), (20.0, Severity.SEVERE)]
)
def test_a_command_that_is_shorter_than_its_shell(start_s: float, severity: Severity | None) -> None:
    start = ShellStart(wall_s=start_s, guest_wall_s=start_s, user_s=0.0, system_s=0.0)
    run = sound(facts={**FACTS, "host": [HOST_FACTS, start]})
    found = findings(run).get("shell start")
    assert (found and found.severity) == severity
    assert ("shell start" in refused(run).values()) is (severity is Severity.SEVERE)


# --- clocks ---------------------------------------------------------------------------------------------------------


def with_guest_clock(cell_id: str, speed: float) -> StoredRun:
    """As if the guest's clock went at this speed."""

    def told(measurement: Measurement) -> Measurement:
        if measurement.metric.name != "guest_wall_s":
            return measurement
        slow = tuple(value * speed for value in measurement.iterations)
        return Measurement(measurement.metric, slow[0], slow)

    run = sound()
    trials = tuple(
        replace(trial, measurements=tuple(map(told, trial.measurements)))
        if trial.cell_id == cell_id
        else trial
        for trial in run.trials
    )
    return replace(run, trials=trials)


def test_clocks_that_disagree_take_the_verdict_back() -> None:
    run = with_guest_clock("tcg", 0.9)
    finding = findings(run)["clocks disagree"]
    assert finding.severity is Severity.SEVERE
    assert finding.message.startswith("tcg: the guest's clock is off by -10")
    assert refused(run) == {"tcg": "clocks disagree"}


def test_clocks_that_disagree_a_little_are_a_warning() -> None:
    run = with_guest_clock("tcg", 0.98)
    assert findings(run)["clocks disagree"].severity is Severity.WARNING
    assert refused(run) == {}


def test_a_flush_on_the_host_is_no_disagreement() -> None:
    run = with_guest_clock("tcg", 0.5)
    flush = Measurement(Metric("host_flush_s", "s"), 5.0, (5.0,))
    trials = tuple(replace(trial, measurements=(*trial.measurements, flush)) for trial in run.trials)
    assert findings(replace(run, trials=trials)) == {}


# --- the host -------------------------------------------------------------------------------------------------------


def with_noise(run: StoredRun, *cells: str, **noise: Any) -> StoredRun:
    trials = tuple(replace(trial, noise=noise) if trial.cell_id in cells else trial for trial in run.trials)
    return replace(run, trials=trials)


EVERY = ("host", "uml", "tcg")


def test_other_programs_widen_ratios_between_platforms_and_refuse_nothing() -> None:
    busy = {"foreign_s": 0.5, "machine_processors": 1, "elapsed_s": 1.0}
    run = with_noise(sound(), *EVERY, **busy, run_queue_delay=0.5)
    finding = findings(run)["foreign load"]
    assert finding.severity is Severity.WARNING
    assert finding.message == (
        "other programs used 50 % of the processors; ratios between platforms may be off by up to 100 %"
    )
    assert finding.cells == ()
    cells = {result.cell.id: result.comparison.get("wall_s") for result in analysed(run).cells}
    uml, tcg = known(cells["uml"]), known(cells["tcg"])
    assert (uml.verdict, uml.reason) == (Verdict.INCONCLUSIVE, WIDENED_REASON)  # ×1.2
    assert tcg.verdict is Verdict.SLOWER  # ×8
    assert uml.stretch == pytest.approx(math.log(2))
    for little in (
        {"run_queue_delay": 0.02},
        {},
    ):  # or, on the host, user and system time are 98 % of wall time
        waited = with_noise(sound(), *EVERY, **busy, **little)
        cells = {result.cell.id: result.comparison.get("wall_s") for result in analysed(waited).cells}
        assert known(cells["uml"]).verdict is Verdict.SLOWER
    assert analysed(run).flagged_blocks == tuple(range(12))


@pytest.mark.parametrize(
    ("metric", "suffers"),
    [
        (Metric("wall_s", "s"), True),
        (Metric("speed", "MB/s", Better.HIGHER), True),
        (Metric("user_s", "s"), False),
        (Metric("instructions", "instructions"), False),
        (Metric("answer", ""), False),
        (Metric("max_rss_bytes", "B"), False),
    ],
)
def test_only_clock_times_and_rates_wait_for_a_processor(metric: Metric, suffers: bool) -> None:
    assert waits_for_processor(metric) is suffers


def test_a_guests_processor_time_is_widened_by_as_long_as_it_was_kept_from_its_processor() -> None:
    """Its clock goes on meanwhile, however long the host's own command waited too."""
    busy = {"foreign_s": 0.5, "machine_processors": 1, "elapsed_s": 1.0, "run_queue_delay": 0.7}
    run = with_noise(sound(), *EVERY, **busy)
    found = {result.cell.id: result.comparison.get("user_s") for result in analysed(run).cells}
    assert known(found["tcg"]).stretch == pytest.approx(-math.log(1 - 0.7), rel=0.01)


def test_a_little_of_other_programs_is_a_warning_and_next_to_nothing_is_none() -> None:
    run = with_noise(sound(), *EVERY, foreign_s=0.15, machine_processors=1, elapsed_s=1.0)
    assert findings(run)["foreign load"].severity is Severity.WARNING
    assert refused(run) == {}
    run = with_noise(sound(), *EVERY, foreign_s=0.1, machine_processors=2, elapsed_s=1.0)
    assert findings(run) == {}


def test_what_guestmark_itself_does_beside_a_machine_is_no_disturbance() -> None:
    """As recorded on a quiet host: User-Mode Linux's processes wait for each other, and the processor is contended."""
    noise = {"psi_cpu_some": 0.11, "run_queue_delay": 0.12, "steal": 0.0}
    own = with_noise(
        sound(), *EVERY, **noise, foreign_s=-0.011, machine_processors=1, machine_steal_s=0.0, elapsed_s=0.14
    )
    assert analysed(own).flagged_blocks == ()
    assert findings(own) == {}
    unknown = with_noise(sound(), *EVERY, **noise, elapsed_s=0.14)
    assert analysed(unknown).disturbances == {"psi_cpu_some": 12, "run_queue_delay": 12}


def test_a_tick_in_a_short_trial_is_nothing() -> None:
    """The kernel counts in steps of 10 ms, which is all that a trial of `true` takes."""
    run = sound()
    for name, foreign_s in (("host", 0.012), ("uml", -0.007), ("tcg", -0.001)):
        run = with_noise(
            run, name, foreign_s=foreign_s, machine_processors=1, machine_steal_s=0.0, elapsed_s=0.014
        )
    run = replace(
        run,
        trials=(
            replace(run.trials[0], noise={**run.trials[0].noise, "machine_steal_s": 0.01}),
            *run.trials[1:],
        ),
    )
    assert analysed(run).flagged_blocks == ()
    assert findings(run) == {}


def test_steal_widens_ratios_between_platforms() -> None:
    run = with_noise(sound(), *EVERY, foreign_s=0.0, machine_steal_s=0.2, machine_processors=1, elapsed_s=1.0)
    assert findings(run)["steal"].severity is Severity.WARNING
    assert refused(run) == {}
    uml = next(result for result in analysed(run).cells if result.cell.id == "uml").comparison["wall_s"]
    assert 0.01 < uml.stretch < 0.03  # as its user and system time are 98 % of its wall time
    old = with_noise(sound(), *EVERY, steal=0.3, elapsed_s=1.0)
    assert findings(old)["steal"].severity is Severity.WARNING


def test_throttling_of_some_cells_takes_their_verdicts_back() -> None:
    run = with_noise(sound(), "tcg", throttled=3)
    assert findings(run)["throttling"].message.endswith("tcg 12 of 12 trials")
    assert refused(run) == {"tcg": "throttling"}
    everywhere = with_noise(sound(), *EVERY, throttled=3)
    assert findings(everywhere)["throttling"].severity is Severity.WARNING
    assert refused(everywhere) == {}
    once = sound(noise={("tcg", 3): {"throttled": 1}}, blocks=8)
    assert refused(once) == {}
    assert findings(once)["throttling"].severity is Severity.WARNING


def test_cells_that_ran_at_another_frequency() -> None:
    run = with_noise(
        with_noise(sound(), "host", frequency_mhz=[2000.0, 2100.0]), "tcg", frequency_mhz=[2000.0, 3400.0]
    )
    assert "3.40 GHz for tcg and at 2.10 GHz for host" in findings(run)["frequency"].message


# --- governor, turbo, environment -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("frequency", "expected"),
    [
        ({"governor": "powersave"}, {"governor": Severity.WARNING}),
        ({"governor": ["performance", "schedutil"]}, {"governor": Severity.WARNING}),
        ({"governor": "performance", "boost": True}, {"turbo": Severity.NOTE}),
        ({}, {"governor unknown": Severity.NOTE}),
    ],
)
def test_governor_and_turbo(frequency: Mapping[str, Any], expected: Mapping[str, Severity]) -> None:
    run = replace(sound(), environments=({**ENVIRONMENT, "frequency": frequency},))
    assert {name: finding.severity for name, finding in findings(run).items()} == expected
    assert refused(run) == {}


def test_a_virtual_machine_cannot_see_its_governor() -> None:
    environment = {**ENVIRONMENT, "virtualization": {"hypervisor": True}, "frequency": {}}
    found = findings(replace(sound(), environments=(environment,)))
    assert "itself a virtual machine" in found["governor unknown"].message


def resumed(at: float = 6, **changed: Any) -> StoredRun:
    """Resumed after that many blocks, which are a second apart, with these parts of the environment changed."""
    run = sound()
    from datetime import UTC, datetime

    stamp = datetime.fromtimestamp(1_795_296_580.0 + at - 0.5, UTC).isoformat()
    later = {name: {**ENVIRONMENT.get(name, {}), **parts} for name, parts in changed.items()}
    first = {**ENVIRONMENT, "recorded_at": "2026-01-01T00:00:00Z"}
    return replace(run, environments=(first, {**ENVIRONMENT, **later, "recorded_at": stamp}))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"kernel": {"release": "6.1.0-43-amd64"}}, "kernel 6.1.0-41-amd64 → 6.1.0-43-amd64"),
        ({"processor": {"microcode": "0x2"}}, "microcode 0x1000065 → 0x2"),
        ({"programs": {"qemu": "QEMU emulator version 8.0.0"}}, "qemu 7.2.22 (Debian) → 8.0.0"),
        ({"frequency": {"governor": "powersave"}}, "governor performance → powersave"),
    ],
)
def test_a_run_of_two_systems_has_no_verdict(changed: Mapping[str, Any], said: str) -> None:
    run = resumed(**changed)
    assert findings(run)["environment changed"].message == f"the run mixes two systems: {said}"
    assert refused(run) == {"uml": "environment changed", "tcg": "environment changed"}
    every = [
        comparison.verdict for result in analysed(run).cells for comparison in result.comparison.values()
    ]
    assert set(every) == {Verdict.INCONCLUSIVE}  # not of the primary metric alone


def test_an_environment_that_no_trial_was_made_in_does_not_count() -> None:
    for at in (100, -5):  # after the last trial, and before the first
        assert findings(resumed(at=at, kernel={"release": "6.1.0-43-amd64"})) == {}


def test_what_may_matter_is_a_warning() -> None:
    changed: dict[str, Any] = {
        "guestmark": {"agent_sha256": "b" * 64},
        "programs": {"qemu-img": "qemu-img version 8.0.0"},
    }
    found = findings(resumed(**changed))
    assert found.keys() == {"environment differs"}
    assert "agent aaaaaaaaaaaa → bbbbbbbbbbbb" in found["environment differs"].message


def test_a_guest_that_was_updated_in_the_course_of_the_run() -> None:
    run = sound()
    new = made_facts.of(guest(qemu="8.0.0", kernel="6.1.0-43"))
    trials = tuple(
        replace(trial, facts=new) if trial.cell_id == "tcg" and trial.block > 5 else trial
        for trial in run.trials
    )
    message = findings(replace(run, trials=trials))["environment changed"].message
    assert "kernel of tcg 6.1.0 → 6.1.0-43, QEMU of tcg 7.2.22 → 8.0.0" in message


def test_several_reasons_are_all_told() -> None:
    run = with_guest_clock("tcg", 0.9)
    run = with_noise(run, "tcg", throttled=3)
    assert refused(run) == {"tcg": "clocks disagree, throttling"}


def results(run: StoredRun) -> dict[str, CellResult]:
    return {result.cell.id: result for result in analysed(run).cells}


def test_every_answer_is_taken_back() -> None:
    answers = results(with_guest_clock("tcg", 0.9))["tcg"].answers
    assert answers is not None
    assert answers.typical.verdict is Verdict.INCONCLUSIVE
    assert answers.total is not None
    assert answers.total.verdict is Verdict.INCONCLUSIVE


def test_facts_that_this_version_does_not_know_are_no_finding() -> None:
    assert Findings().facts() == Facts()
    strange = Facts({"placement": {"level": 3}, "guest": "?", "storage": []})
    old = [(replace(one, factors={}, processors=0), ratio) for one, ratio in CELLS]
    run = sound(old)
    trials = tuple(replace(trial, facts=strange) for trial in run.trials)
    assert findings(replace(run, trials=trials)).keys() == {"placement unknown"}


@pytest.mark.parametrize("noise", [{"foreign_s": 0.2}, {"foreign_s": 0.0, "machine_steal_s": 0.08}])
def test_what_is_not_heavy_refuses_no_ratio_however_small(noise: Mapping[str, float]) -> None:
    cells = [CELLS[0], (CELLS[1][0], 1.05), CELLS[2]]
    run = with_noise(sound(cells), *EVERY, **noise, machine_processors=1, elapsed_s=1.0)
    assert {finding.severity for finding in findings(run).values()} == {Severity.WARNING}
    assert refused(run) == {}
    heavier = {name: 2 * value for name, value in noise.items()}
    run = with_noise(sound(cells), *EVERY, **heavier, machine_processors=1, elapsed_s=1.0)
    assert refused(run) == {}


def test_a_free_host_has_all_its_processors() -> None:
    free = replace_placed(level="free", machine="0-1")
    host = HostMachine(kernel="6.1.0", arch="x86_64", boot_id="1", processors=1, placement=free)
    cells = [(replace(one, factors={"placement": "free"}), ratio) for one, ratio in CELLS]
    run = sound(cells, {"host": [host], "uml": [guest(placed=free)], "tcg": [guest(placed=free)]})
    assert "host 2; uml 1; tcg 1" in findings(run)["unequal processors"].message
    assert findings(run)["unequal processors"].severity is Severity.WARNING
