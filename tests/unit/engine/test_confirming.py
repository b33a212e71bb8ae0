"""Two stored runs, measured again side by side as far as both sides are still there."""

import json
from pathlib import Path

import pytest

from guestmark.core.context import Context
from guestmark.core.errors import UsageError
from guestmark.core.findings import Facts, Findings
from guestmark.core.machine_facts import GuestMachine, Inside, Vmm
from guestmark.core.model import Cell, Plan, Policy, RunState, Trial, TrialStatus, WorkloadSpec
from guestmark.core.platform_spec import PlatformSpec
from guestmark.engine.confirmation import make_confirmation
from guestmark.ledger.model import StoredRun
from tests.framework.command_line import CommandLine
from tests.framework.ledgers import WALL

SCRIPT = "#!/bin/sh\necho {}\n"


def program(path: Path, said: int) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(SCRIPT.format(said))
    path.chmod(0o755)
    return path


def measured(guestmark: CommandLine, *words: object) -> str:
    done = guestmark(
        "exec", "--blocks", "1", "--iterations", "1", "--warmup", "0", "--null", "none", "--quiet", "--json",
        "-", "--metric", "n=([0-9]+)", "--", *words,
    )  # fmt: skip
    assert done.status == 0, done.stderr
    return str(json.loads(done.stdout)["run"]["id"])


@pytest.mark.long
def test_two_programs_are_measured_side_by_side(guestmark: CommandLine, tmp_path: Path) -> None:
    old, new = (program(tmp_path / side / "program", said) for side, said in (("a", 10), ("b", 20)))
    runs = measured(guestmark, old), measured(guestmark, new)
    listed = guestmark("compare", *runs, "--confirm", "--list")
    assert listed.status == 0
    assert f"command {old} → {new}" in listed.stderr
    done = guestmark(
        "compare", *runs, "--confirm", "--blocks", "6", "--quiet", "--json", "-", "--fail-if", "> +50%"
    )
    assert done.status in {1, 125}, done.stderr  # what else runs here may forbid a verdict
    document = json.loads(done.stdout)
    assert [cell["id"] for cell in document["cells"]] == ["before host", "after host"]
    assert document["cells"][0]["baseline"]
    assert document["cells"][1]["vs_baseline"]["n"]["ratio"] == pytest.approx(2)
    assert {trial["block"] for trial in document["cells"][1]["trials"]} == set(range(6))


def test_a_program_that_was_replaced_is_not_taken_for_the_old_one(
    guestmark: CommandLine, tmp_path: Path
) -> None:
    path = program(tmp_path / "a" / "program", 10)
    first = measured(guestmark, path)
    second = measured(guestmark, program(path, 20))
    done = guestmark("compare", first, second, "--confirm")
    assert done.status == 2
    assert f"{path} has changed since run {first}, and the old file is gone" in done.stderr
    assert guestmark("compare", first, second, "--list").status == 2


def stored(name: str, kernel: str, host_kernel: str = "6.1", level: str | None = None) -> StoredRun:
    levels = {} if level is None else {"kernel": level}
    cell = Cell("tcg", WorkloadSpec("syscalls"), PlatformSpec.read("tcg"), levels, baseline=True)
    found = Findings()
    inside = Inside(
        kernel=kernel, root="overlay", arch="x86_64", boot_id="", cpu="", processors=1, memory_bytes=1,
        clocksource="tsc", cpu_flags_missing=[], cpu_flags_more=[],
    )  # fmt: skip
    vmm = Vmm(accelerator="tcg", kvm_present=False, processors=1, cpu="max", memory_bytes=1, qemu="7.2")
    found.add(GuestMachine(asked={}, guest=inside, vmm=vmm))
    trial = Trial("tcg", 0, 0, TrialStatus.OK, facts=Facts(found.facts().kept))
    plan = Plan("syscalls", (cell,), Policy(), (WALL,), Context(cwd="/"))
    environment = {"machine": "m", "kernel": {"release": host_kernel}}
    return StoredRun(name, plan, (environment,), 1, RunState.COMPLETE, 0.0, (trial,))


def kernel(path: Path, release: str) -> str:
    path.write_bytes(b"\x7fELF" + b"\0" * 60 + f"Linux version {release} (x)".encode())
    return str(path)


def test_kernels_are_found_by_what_guests_attested(tmp_path: Path) -> None:
    old, new = (kernel(tmp_path / name, name) for name in ("1.0-old", "2.0-new"))
    before, after = stored("b", "1.0-old", level=old), stored("a", "2.0-new", "6.2", level=new)
    found = make_confirmation(before, after, {"blocks": 4})
    assert [cell.factors["kernel"] for cell in found.plan.cells] == [old, new, old]
    assert [cell.get_displayed_level("kernel") for cell in found.plan.cells[:2]] == ["before", "after"]
    assert found.differing == ("kernel 1.0-old → 2.0-new",)
    assert found.missing == ("the host's kernel (6.1 → 6.2) is now the same for both",)
    assert (found.plan.policy.blocks, found.plan.context.confirms) == (4, ("b", "a"))
    kernel(tmp_path / "1.0-old", "1.1-rebuilt")
    with pytest.raises(UsageError, match=r"kernel 1\.0-old, which run b used, is no longer here"):
        make_confirmation(before, after, {})


def test_what_is_the_hosts_own_is_for_a_campaign() -> None:
    with pytest.raises(UsageError, match=r"the host's kernel .* is now the same for both") as caught:
        make_confirmation(stored("b", "6.1"), stored("a", "6.1", "6.2"), {})
    assert "guestmark campaign" in caught.value.hint
    with pytest.raises(UsageError, match="measured the same"):
        make_confirmation(stored("b", "6.1"), stored("a", "6.1"), {})
