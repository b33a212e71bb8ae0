"""Two of anything under test: variables and files as factors, their labels, and what is shown of them."""

import json
import sys
from pathlib import Path

import pytest

from guestmark.cli import main
from guestmark.cli.do import ab
from guestmark.cli.do.ab import _label_paths, _render_settings
from guestmark.core import registry
from guestmark.core.architectures import find_host_architecture
from guestmark.core.errors import UsageError
from guestmark.core.factor import Labelled
from guestmark.core.gate import parse_gates
from guestmark.core.model import Plan
from guestmark.core.platform_spec import parse_platforms
from guestmark.ledger import codec
from guestmark.plan.matrix import NullCells
from guestmark.plan.outline import Overrides
from guestmark.workloads.exec.plan import ExecOptions, build_plan
from guestmark.workloads.exec.trial import substitute_levels
from tests.framework.command_line import CommandLine


@pytest.fixture
def kernels(tmp_path: Path) -> tuple[str, str]:
    paths = tmp_path / "vmlinuz-6.1", tmp_path / "b" / "vmlinuz-6.12"
    for path in paths:
        path.parent.mkdir(exist_ok=True)
        path.touch()
    return str(paths[0]), str(paths[1])


def plan(*settings: str, on: str = "host", argv: tuple[str, ...] = ("true",), **more: object) -> Plan:
    given = ExecOptions(on=(on,), settings=settings, null=NullCells.NONE, seed=1, **more)  # type: ignore[arg-type]
    return build_plan(given, argv)


def test_a_level_with_a_label_is_called_by_it(kernels: tuple[str, str]) -> None:
    old, new = kernels
    made = plan(f"kernel=old:{old},new:{new}", on="tcg,uml")
    assert [cell.id for cell in made.cells] == [
        "tcg kernel=old", "tcg kernel=new", "uml kernel=old", "uml kernel=new",
    ]  # fmt: skip
    cell = made.cells[1]
    assert (cell.factors["kernel"], cell.get_displayed_level("kernel")) == (new, "new")
    assert type(cell.factors["kernel"]) is str
    # Ledgers keep both.
    assert codec.load_json(codec.dump_json(made), Plan, "the plan").cells == made.cells


@pytest.mark.parametrize(
    ("typed", "label"), [("kernel=old", "old"), ("tcg kernel=new", "new"), ("uml kernel=new", "new")]
)
def test_labels_select_cells(kernels: tuple[str, str], typed: str, label: str) -> None:
    old, new = kernels
    made = plan(f"kernel=old:{old},new:{new}", on="tcg,uml", baseline=typed)
    (baseline,) = [cell for cell in made.cells if cell.baseline]
    assert baseline.get_displayed_level("kernel") == label
    chosen = build_plan(
        ExecOptions(on=("tcg,uml",), settings=[f"kernel=old:{old},new:{new}"], only="kernel=new"), ["true"]
    )
    assert {cell.get_displayed_level("kernel") for cell in chosen.cells} == {"new"}
    (gate,) = parse_gates(["tcg kernel=new > 5%"], plan(f"kernel=old:{old},new:{new}", on="tcg").cells, ())
    assert gate.words == ("tcg", "kernel=new")


def test_a_colon_is_no_label_where_no_path_follows() -> None:
    assert registry.parse_settings(["cpu=qemu64"]) == {"cpu": ("qemu64",)}
    assert registry.parse_settings(["env:URL=a:/b"]) == {"env:URL": ("a:/b",)}
    with pytest.raises(UsageError, match="there is no kernel"):
        registry.parse_settings(["kernel=old:vmlinuz"])


def test_variables_are_factors_on_every_platform() -> None:
    made = plan(r"env:OMP_NUM_THREADS=1,2", "env:EMPTY=", on="host,tcg")
    assert [dict(cell.factors)["env:OMP_NUM_THREADS"] for cell in made.cells] == ["1", "2", "1", "2"]
    assert made.cells[0].id == "host env:OMP_NUM_THREADS=1 env:EMPTY="
    with pytest.raises(UsageError, match="is not the name of an environment variable"):
        plan("env:A-B=1")


def test_parameters_stand_in_the_command() -> None:
    given = Overrides(parameters={"level": ("1", "3")}).parameters
    made = plan(argv=("gzip", "-{level}", "{other}"), parameters=given)
    assert [cell.id for cell in made.cells] == ["host level=1", "host level=3"]
    assert [substitute_levels(cell) for cell in made.cells] == [
        ["gzip", "-1", "{other}"],
        ["gzip", "-3", "{other}"],
    ]
    assert made.cells[0].compares_with(made.cells[1])


def test_ab_names_its_sides() -> None:
    assert _label_paths(("/boot/vmlinuz-6.1", "/boot/vmlinuz-6.12")) == (
        "6.1:/boot/vmlinuz-6.1", "6.12:/boot/vmlinuz-6.12",
    )  # fmt: skip
    assert _label_paths(("/k/6.1/vmlinuz", "/boot/vmlinuz-6.12")) == (
        "6.1:/k/6.1/vmlinuz", "6.12:/boot/vmlinuz-6.12",
    )  # fmt: skip
    assert _label_paths(("/a/qemu", "/b/qemu")) == ("A:/a/qemu", "B:/b/qemu")
    assert _label_paths(("old:/a", "/b")) == ("old:/a", "B:/b")
    assert _render_settings({"kernel_args": ("a,b", "c")}) == [r"kernel_args=a\,b,c"]


def test_files_of_a_machine_are_looked_at(tmp_path: Path) -> None:
    build_directory = tmp_path / "build"
    build_directory.mkdir()
    program = build_directory / find_host_architecture().emulator.name
    with pytest.raises(UsageError, match=f"there is no {program.name}"):
        registry.parse_settings([f"qemu={build_directory}"])
    program.touch()
    with pytest.raises(UsageError, match="cannot be executed"):
        registry.parse_settings([f"qemu={build_directory}"])
    program.chmod(0o755)
    found = registry.parse_settings([f"qemu=mine:{build_directory}"])["qemu"][0]
    assert isinstance(found, Labelled)
    assert (str(found), found.label) == (str(program), "mine")
    for name in ("bios", "modules", "rootfs"):
        with pytest.raises(UsageError, match=r"is no|there is no"):
            registry.parse_settings([f"{name}={tmp_path / 'nothing'}"])
    assert parse_platforms(["tcg"])[0].takes_factor("qemu")
    assert not parse_platforms(["uml"])[0].takes_factor("qemu")


@pytest.mark.long
def test_two_values_of_a_variable_in_one_command(guestmark: CommandLine) -> None:
    done = guestmark(
        "ab", "--env", "PAUSE", "0.001", "0.6", "--blocks", "6", "--iterations", "1", "--warmup", "0", "--quiet",
        "--fail-if", "> +50%", "--json", "-", "--", "sh", "-c", "sleep $PAUSE",
    )  # fmt: skip
    document = json.loads(done.stdout)
    (gate,) = document["gates"]
    assert (done.status, gate["outcome"]) == (1, "broken"), gate
    assert [cell["id"] for cell in document["cells"]] == ["host env:PAUSE=0.001", "host env:PAUSE=0.6"]
    assert document["cells"][1]["vs_baseline"]["wall_s"]["ratio"] > 2


def test_levels_of_set_are_compared(guestmark: CommandLine) -> None:
    done = guestmark(
        "ab", "--set", "env:PAUSE=1,2", "-r", "1", "--iterations", "1", "--warmup", "0", "--quiet", "--json", "-",
        "--", "true",
    )  # fmt: skip
    assert done.status == 0, done.stderr
    cells = json.loads(done.stdout)["cells"]
    assert [cell["id"] for cell in cells] == ["host env:PAUSE=1", "host env:PAUSE=2"]


def test_a_setting_that_is_not_compared_chooses_no_platform(guestmark: CommandLine) -> None:
    done = guestmark(
        "ab", "--set", "placement=free", "-r", "1", "--iterations", "1", "--warmup", "0", "--quiet", "--json", "-",
        "--", "true", "---", "sleep", "0",
    )  # fmt: skip
    assert done.status == 0, done.stderr
    assert {cell["platform"] for cell in json.loads(done.stdout)["cells"]} == {"host"}


@pytest.mark.parametrize("words", [(), ("--set", "env:PAUSE=1")])
def test_nothing_to_compare_is_told(guestmark: CommandLine, words: tuple[str, ...]) -> None:
    done = guestmark("ab", *words, "--", "true")
    assert done.status == 2
    assert "nothing to compare" in done.stderr


def test_what_is_refused_boots_nothing_first(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        ab, "_choose_platform", lambda *_: pytest.fail("a guest is booted to choose the platform")
    )
    monkeypatch.setattr(sys, "argv", ["guestmark", "ab", "--kernel", "/none/a", "/none/b", "--", "true"])
    assert main() == 2
    assert "there is no kernel at '/none/a'" in capsys.readouterr().err


def test_two_programs_stand_side_by_side(guestmark: CommandLine) -> None:
    done = guestmark(
        "ab", "-r", "6", "--iterations", "1", "--warmup", "0", "--quiet", "--json", "-",
        "--", "sh", "-c", "sleep 0.02", "---", "sh", "-c", "sleep 0.5",
    )  # fmt: skip
    document = json.loads(done.stdout)
    (second,) = (cell["vs_baseline"]["wall_s"] for cell in document["cells"] if cell["vs_baseline"])
    assert done.status == 0
    assert second["ratio"] > 2  # six blocks on a busy host may not be enough for a verdict
    done = guestmark("ab", "--env", "A", "1", "2", "--", "true", "---", "false")
    assert done.status == 2
    assert "two programs" in done.stderr
