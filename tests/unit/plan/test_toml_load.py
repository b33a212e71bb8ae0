"""Plans in TOML: what they become, and what is said about those that are wrong."""

from pathlib import Path
from typing import Any

import pytest

from guestmark.core.context import Caller
from guestmark.core.errors import UsageError
from guestmark.core.model import Plan
from guestmark.plan import library
from guestmark.plan.load import load_outline
from guestmark.plan.matrix import NullCells
from guestmark.plan.outline import Overrides, assemble_plan, override_outline

BASE = """
name = "x"
title = "Which?"
platforms = ["tcg", "uml", "host"]
"""
EXEC = """
[workloads.{key}]
kind = "exec"
params.command = ["true", "{key}"]
"""


def plan_of(text: str, scale: float = 1.0, **overrides: Any) -> Plan:
    return assemble_plan(
        override_outline(load_outline(text, "x.toml", scale=scale), Overrides(seed=1, **overrides)), Caller()
    )


def ids(text: str, **overrides: Any) -> list[str]:
    return [cell.id for cell in plan_of(text, **{"null": NullCells.NONE, **overrides}).cells]


def mistakes(text: str) -> list[str]:
    with pytest.raises(UsageError) as caught:
        load_outline(text, "x.toml")
    return caught.value.hint.splitlines()


# --- the matrix ---------------------------------------------------------------------------------------------


def test_lists_span_the_matrix_and_a_factor_goes_where_it_applies() -> None:
    text = BASE + "[factors]\nsmp = [1, 2]\nmemory = '512 MiB'\n" + EXEC.format(key="a")
    assert ids(text) == ["tcg smp=1", "tcg smp=2", "uml", "host"]
    made = plan_of(text).cells
    assert [dict(cell.factors) for cell in made[:4]] == [
        {"smp": "1", "memory": "512M", "placement": "pinned"},
        {"smp": "2", "memory": "512M", "placement": "pinned"},
        {"memory": "512M", "placement": "pinned"},
        {"placement": "pinned"},
    ]


def test_several_workloads_have_their_keys_in_the_ids_and_factors_of_their_own() -> None:
    text = BASE + EXEC.format(key="a") + EXEC.format(key="b") + 'platforms = "tcg"\nfactors.smp = [1, 4]\n'
    assert ids(text) == ["a tcg", "a uml", "a host", "b tcg smp=1", "b tcg smp=4"]


def test_exclude_takes_away_what_agrees_in_everything() -> None:
    text = (
        BASE
        + "exclude = [{platform = 'tcg', smp = ['1', '2']}, {workload = 'b'}]\n[factors]\nsmp = [1, 2, 4]\n"
    )
    assert ids(text + EXEC.format(key="a") + EXEC.format(key="b")) == ["a tcg smp=4", "a uml", "a host"]


def test_a_reason_is_told_for_the_cells_it_takes_away() -> None:
    text = BASE + "exclude = [{workload = 'b', platform = ['tcg', 'uml'], reason = 'too slow'}]\n"
    plan = assemble_plan(load_outline(text + EXEC.format(key="a") + EXEC.format(key="b"), "p"), Caller())
    assert [cell.id for cell in plan.cells if cell.null_of is None][3:] == ["b host"]
    assert plan.context.notes == ("left out: b tcg, b uml: too slow",)


def test_include_adds_rows_with_the_first_levels_of_the_rest_and_none_twice() -> None:
    text = (
        BASE
        + "include = [{workload = 'b', platform = 'tcg', memory = ['1G', '2G']}, {workload = 'a', platform = 'uml'}]\n"
        + "[factors]\nmemory = ['256M']\nsmp = [1, 2]\n"
        + EXEC.format(key="a")
        + EXEC.format(key="b")
        + "matrix = false\n"
    )
    assert ids(text) == [
        "a tcg smp=1",
        "a tcg smp=2",
        "a uml",
        "a host",
        "b tcg memory=1G smp=1",
        "b tcg memory=2G smp=1",
    ]


def test_ids_say_what_departs_from_the_usual_level() -> None:
    text = (
        BASE
        + "include = [{platform = 'tcg', memory = ['256M', '1G'], smp = 2}]\n[factors]\nmemory = '256M'\n"
    )
    text += "smp = 1\n" + EXEC.format(key="a")
    assert ids(text, on=["tcg"]) == ["tcg", "tcg smp=2", "tcg memory=1G smp=2"]
    asked = plan_of(text, on=["tcg"], settings=["memory=512M"], baseline="tcg memory=512M smp=2")
    assert [(cell.id, cell.baseline) for cell in asked.cells if not cell.null_of] == [
        ("tcg memory=512M", False),
        ("tcg memory=512M smp=2", True),
    ]


def test_a_platform_that_no_row_has_is_named_with_those_that_rows_have() -> None:
    text = BASE + "include = [{platform = ['host', 'tcg']}]\n" + EXEC.format(key="a") + "matrix = false\n"
    made = plan_of(text, on=["host", "uml"], null=NullCells.NONE)
    assert [cell.id for cell in made.cells] == ["host"]
    assert "left out: uml: the plan has no cell there; it has cells on host, tcg" in made.context.notes
    assert not any("no cell there" in note for note in plan_of(text, on=["host", "tcg"]).context.notes)
    with pytest.raises(UsageError, match="no cell on uml") as found:
        plan_of(text, on=["uml"])
    assert "host, tcg" in found.value.hint


def test_a_level_that_a_machine_cannot_have_is_left_out_unless_it_was_asked_for() -> None:
    """Of the shipped definitions QEMU's has snapshots, and podman's has none."""
    text = BASE + "[factors]\nstart = {}\n" + EXEC.format(key="a")
    both, on = "['cold', 'restored']", ["own:podman", "own:qemu"]
    made = plan_of(text.format(both), on=on, null=NullCells.NONE)
    starts = ["own:podman start=cold", "own:qemu start=cold", "own:qemu start=restored"]
    assert [cell.id for cell in made.cells] == starts
    (note,) = (note for note in made.context.notes if "left out" in note)
    assert note.startswith("start=restored is left out on own:podman: its definition has no commands")
    assert ids(text.format("'restored'"), on=on) == ["own:podman", "own:qemu"]
    asked = plan_of(text.format(both), on=on, settings=["start=restored"], null=NullCells.NONE)
    assert [cell.factors["start"] for cell in asked.cells] == ["restored", "restored"]


def test_a_workload_may_do_without_a_factor(monkeypatch: pytest.MonkeyPatch) -> None:
    from guestmark.core import registry
    from guestmark.core.platform_spec import PlatformSpec
    from guestmark.workloads.exec import ExecWorkload

    class Picky(ExecWorkload):
        @classmethod
        def takes_factor(cls, factor: str, platform: PlatformSpec) -> bool:
            return not (factor == "memory" and str(platform) == "uml")

    monkeypatch.setattr(registry, "workload_kind", lambda _name: Picky)
    text = BASE + "[factors]\nmemory = ['256M', '512M']\n" + EXEC.format(key="a")
    made = plan_of(text, null=NullCells.NONE)
    assert [cell.id for cell in made.cells] == ["tcg memory=256M", "tcg memory=512M", "uml", "host"]
    assert made.context.notes == ("memory does not apply to uml, host",)


# --- baselines and groups -----------------------------------------------------------------------------------


def groups(made: Plan) -> list[tuple[str, str, bool]]:
    return [(cell.group, cell.id, cell.baseline) for cell in made.cells]


def test_each_workload_has_its_baseline() -> None:
    text = BASE + "baseline = {platform = 'host'}\n" + EXEC.format(key="a") + EXEC.format(key="b")
    assert [cell.id for cell in plan_of(text).cells if cell.baseline] == ["a host", "b host"]


def test_platforms_may_be_tables_of_their_own() -> None:
    text = (
        BASE
        + "baseline = {workload = 'b'}\ncompare_within = ['platform']\n"
        + EXEC.format(key="a")
        + EXEC.format(key="b")
        + 'platforms = ["tcg", "host"]\n'
    )
    made = plan_of(text, null=NullCells.NONE)
    assert groups(made) == [
        ("tcg", "a tcg", False),
        ("uml", "a uml", True),
        ("host", "a host", False),
        ("tcg", "b tcg", True),
        ("host", "b host", True),
    ]
    assert made.context.notes == ("the plan's baseline is missing in uml: compared with a uml instead",)


def test_everything_may_be_compared_with_one_cell() -> None:
    text = BASE + "compare_within = []\nbaseline = {platform = 'uml', workload = 'b'}\n"
    made = plan_of(text + EXEC.format(key="a") + EXEC.format(key="b"), null=NullCells.NONE)
    assert {cell.group for cell in made.cells} == {"Which?"}
    assert [cell.id for cell in made.cells if cell.baseline] == ["b uml"]


def test_null_copies_stay_in_their_group() -> None:
    made = plan_of(BASE + "compare_within = ['platform']\n" + EXEC.format(key="a"))
    assert [(cell.id, cell.group) for cell in made.cells if cell.null_of] == [
        ("tcg#2", "tcg"), ("uml#2", "uml"), ("host#2", "host"),
    ]  # fmt: skip


# --- options ------------------------------------------------------------------------------------------------


def test_options_take_precedence() -> None:
    text = (
        BASE + "[factors]\nsmp = [1, 2]\n" + EXEC.format(key="a") + "[repetition]\nblocks = 7\nwarmup = 3\n"
    )
    assert ids(text, on=["tcg,uml"], settings=["smp=4", "memory=1G"]) == [
        "tcg smp=4 memory=1G",
        "uml memory=1G",
    ]
    made = plan_of(text, warmup=0, time_limit_s=5.0)
    assert (made.policy.warmup, made.policy.blocks, made.policy.time_limit_s) == (0, None, 5.0)
    assert plan_of(text).policy.blocks == 7
    assert [cell.id for cell in plan_of(text, baseline="uml").cells if cell.baseline] == ["uml"]


def test_a_factor_set_by_hand_that_applies_nowhere_is_refused_one_of_the_plan_is_not() -> None:
    text = BASE + "[factors]\nsmp = [1, 2]\n" + EXEC.format(key="a")
    assert ids(text, on=["uml"]) == ["uml"]
    with pytest.raises(UsageError, match="smp cannot be set on uml"):
        ids(text, on=["uml"], settings=["smp=1"])


@pytest.mark.parametrize(
    ("only", "found"),
    [
        ("platform=tcg and smp=2", ["tcg smp=2"]),
        ("platform=tcg,smp=2,4", ["tcg smp=2", "tcg smp=4"]),
        ("platform!=tcg", ["uml", "host"]),
        ("smp!=1,2", ["tcg smp=4", "uml", "host"]),
        ("tcg smp=1", ["tcg smp=1"]),
        (" PLATFORM = uml ", ["uml"]),
        ("workload=a && platform=host", ["host"]),
    ],
)
def test_only(only: str, found: list[str]) -> None:
    assert ids(BASE + "[factors]\nsmp = [1, 2, 4]\n" + EXEC.format(key="a"), only=only) == found


@pytest.mark.parametrize(
    ("only", "telling"),
    [
        ("platform=kvm", "existing levels: tcg, uml, host"),
        ("platfrom=tcg", "did you mean 'platform'"),
        ("smp", "e.g."),
        ("", "e.g."),
        ("smp=8", "existing levels: 1, 2"),
        ("platform=uml and smp=1", "--list"),
        ("memory=1G", "known: platform, smp, workload"),
        ("workload=b", "known: a"),
    ],
)
def test_only_what_there_is(only: str, telling: str) -> None:
    with pytest.raises(UsageError) as caught:
        ids(BASE + "[factors]\nsmp = [1, 2]\n" + EXEC.format(key="a"), only=only)
    assert telling in caught.value.hint


# --- scale --------------------------------------------------------------------------------------------------


def test_scale_multiplies_what_is_marked_and_nothing_else() -> None:
    text = (
        BASE
        + "scale = ['values.n', 'memory']\nexclude = [{memory = '2G'}]\n[factors]\nmemory = ['1G', '2G']\nsmp = 4\n"
        + "[workloads.a]\nkind = 'exec'\nparams.command = ['dd', 'count={n}', '{m}', '{}']\n"
        + "params.values = {n = 300, m = 7}\n"
    )
    made = plan_of(text, scale=0.5, null=NullCells.NONE)
    assert [cell.id for cell in made.cells] == ["tcg memory=512M", "uml memory=512M", "host"]
    assert made.cells[0].factors["smp"] == "4"
    assert made.cells[0].workload.params["argv"] == ["dd", "count=150", "7", "{}"]
    assert made.context.scale == 0.5


def test_what_is_marked_must_be_there() -> None:
    assert mistakes(BASE + "scale = ['sise']\n" + EXEC.format(key="a")) == [
        "line 5: scale[1]: 'sise' is neither a parameter nor a factor of the plan"
    ]


# --- published figures --------------------------------------------------------------------------------------

PUBLISHED = """
[[published]]
source = "Someone"
metric = "wall_s"
unit = "s"
percent_of = "time"
figures = [
  {{ cell = {{ workload = "a" }}, value = 8 }},
  {{ cell = {{ workload = "a", smp = {smp} }}, value = 8.5 }},
  {{ cell = {{ workload = "b", platform = "tcg" }}, value = 20 }},
]
"""


def test_published_figures_stand_against_their_own_baseline() -> None:
    text = BASE + "baseline = {workload = 'a'}\ncompare_within = ['platform']\n"
    made = plan_of(text + EXEC.format(key="a") + EXEC.format(key="b") + PUBLISHED.format(smp=4))
    (published,) = made.published
    assert [(dict(figure.cell), figure.value, figure.baseline) for figure in published.figures] == [
        ({"workload": "a"}, 8.0, 8.0),
        ({"workload": "a", "smp": "4"}, 8.5, 8.0),
        ({"workload": "b", "platform": "tcg"}, 20.0, None),  # the publication has no baseline of that table
    ]


# --- mistakes -----------------------------------------------------------------------------------------------


def test_all_mistakes_at_once_each_with_its_line() -> None:
    text = """name = "x"
title = "Which?"
platfroms = ["host"]
platforms = ["hots", "uml"]
scale = ["sise"]
metrics = ["wal_s"]
compare_within = ["platfrom"]
[factors]
memroy = ["1G",
  "2G"]
smp = [1, "two"]
[workloads.a]
kind = "exce"
[workloads.b]
kind = "exec"
params.command = ["true"]
params.metric = ["x"]
[workloads.c]
kind = "exec"
params.command = ["true"]
[[exclude]]
memory = "1X"
[[include]]
workload = "d"
[repetition]
precision = 2
null = "sometimes"
time_limit = "soon"
"""
    found = mistakes(text)
    assert [line.partition(": ")[0] for line in found] == [
        f"line {number}" for number in (3, 4, 5, 6, 7, 9, 11, 13, 17, 22, 24, 26, 27, 28)
    ]
    for number, (path, telling) in enumerate([
        ("platfroms", "did you mean 'platforms'"),
        ("platforms[1]", "did you mean 'host'"),
        ("scale[1]", "neither a parameter"),
        ("metrics[1]", "did you mean 'wall_s'"),
        ("compare_within[1]", "did you mean 'platform'"),
        ("factors.memroy", "did you mean 'memory'"),
        ("factors.smp", "'two' is not a number of processors"),
        ("workloads.a.kind", "did you mean 'exec'"),
        ("workloads.b.params.metric", "did you mean 'metrics'"),
        ("exclude[1].memory", "'1X' is not a size"),
        ("include[1].workload", "known: a, b, c"),
        ("repetition.precision", "string"),
        ("repetition.null", "'baseline', 'all' or 'none'"),
        ("repetition.time_limit", "'soon' is not a duration"),
    ]):  # fmt: skip
        assert f": {path}: " in found[number]
        assert telling in found[number]


@pytest.mark.parametrize(
    ("more", "telling"),
    [
        ("[factors]\nsmp = [1, 1]\n", "given twice"),
        ("[factors]\nmemory = ['1G', '1024M']\n", "given twice"),
        ("[factors]\nsmp = []\n", "at least 1 item"),
        ("[factors]\nsmp = [[1]]\n", "string"),
        ("baseline = {filesytem = 'ext4'}\n", "unknown factor"),
        ("baseline = {workload = 'z'}\n", "unknown workload"),
        ("baseline = {smp = 2}\n", "no cell of the plan has smp=2"),
        ("exclude = [{memory = ['1G']}]\n", "no cell of the plan has memory=1G"),
        ("exclude = [{reason = 'just so'}]\n", "exclude[1]: it names no level"),
        ("cost = {tgc = '4s'}\n", "did you mean 'tcg'"),
        ("cost = {tcg = '0s'}\n", "must be above 0"),
        ("schema = 'guestmark-plan/3'\n", "guestmark-plan/1"),
        ("repetition = {blocks = 0}\n", "greater than or equal to 1"),
        ("repetition = {blocks = 3, precision = '2%'}\n", "cannot be combined"),
        ("repetition = {warmup = true}\n", "integer"),
        ("[workloads.'a b']\nkind = 'exec'\n", "pattern"),
        ("[workloads.b]\nkind = 'exec'\n", "'command' is missing"),
        ("[workloads.b]\nkind = 'exec'\nparams.command = []\n", "at least 1 item"),
        ("[workloads.b]\nkind = 'exec'\nparams = {command = ['x'], values.n = 1}\n", "values.n is not used"),
        ("[workloads.b]\nkind = 'exec'\nparams = {command = ['x'], metrics = ['(']}\n", "regular expression"),
        ("[workloads.b]\nkind = 'exec'\nparams = {command = ['x'], input = '/no/such'}\n", "No such file"),
    ],
)
def test_one_mistake(more: str, telling: str) -> None:
    (line,) = mistakes(BASE + more + EXEC.format(key="a"))
    assert telling in line
    assert line.startswith("line ")


@pytest.mark.parametrize(
    ("old", "new", "telling"),
    [
        ('metric = "wall_s"', 'metric = "wall"', "did you mean 'wall_s'"),
        ('unit = "s"', 'unit = "MB/s"', "unknown unit"),
        ('percent_of = "time"', 'percent_of = "speed"', "'time' or 'throughput'"),
        ("value = 8.5", "value = 0", "greater than 0"),
        ("value = 8.5", 'value = "8"', "valid number"),
        ('source = "Someone"', "", "'source' is missing"),
        ("smp = 4", "spm = 4", "did you mean 'smp'"),
    ],
)
def test_mistakes_in_published_figures(old: str, new: str, telling: str) -> None:
    text = BASE + EXEC.format(key="a") + EXEC.format(key="b") + PUBLISHED.format(smp=4)
    assert old in text
    (line,) = mistakes(text.replace(old, new))
    assert telling in line


@pytest.mark.parametrize(
    "text", ["", "name = ", "= 1", "[a\n", 'name = "x"\nname = "y"', "\x00", "a = 1e999999 b"]
)
def test_what_is_not_a_plan_at_all(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        load_outline(text, "x.toml")
    assert "x.toml" in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize("name", library.list_plan_names())
def test_built_in_plans_load_and_have_cells(name: str) -> None:
    made = plan_of(library.read_builtin(name))
    assert made.name == name
    assert made.title.endswith("?")
    groups = {cell.group for cell in made.cells}
    assert sum(cell.baseline for cell in made.cells) == len(groups)
    small = plan_of(library.read_builtin(name), scale=0.05)
    assert len(small.cells) == len(made.cells)
    assert (small.cells != made.cells) == ("\nscale = " in library.read_builtin(name))


def test_a_plan_is_found_by_name_or_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(BASE + EXEC.format(key="a"))
    assert library.find_plan(str(file)) == (file.read_text(), str(file))
    assert library.find_plan("cpu")[0] == library.read_builtin("cpu")
    for wanted, telling in (("cup", "did you mean 'cpu'"), (str(tmp_path / "no.toml"), "built-in plans"), (
        str(tmp_path), "built-in plans"
    )):  # fmt: skip
        with pytest.raises(UsageError) as caught:
            library.find_plan(wanted)
        assert telling in caught.value.hint
    file.write_bytes(b"name = 'x'\n\xff")
    with pytest.raises(UsageError, match="not UTF-8 in line 2"):
        library.find_plan(str(file))
