"""Campaigns over restarts: the order, what is kept, going on after any stop, and boots as replicates."""

import json
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from guestmark.core.errors import UsageError
from guestmark.engine import campaign as campaigns
from guestmark.engine.campaign import Campaign, CampaignState, MeasuredBoot, SideCommands, make_systemd_unit
from guestmark.stats.across_runs import ChangeVerdict, alternate_sides, compare_two_sides
from tests.framework import CHECKOUT
from tests.framework.command_line import CommandLine

MEASURE = ("--blocks", "1", "--iterations", "1", "--warmup", "0", "--null", "none", "--quiet")


def test_the_order_favours_no_side() -> None:
    assert alternate_sides(1) == "ABBA"
    assert alternate_sides(2) == "ABBABAAB"
    for rounds in (1, 2, 3):
        places = [at for at, side in enumerate(alternate_sides(rounds)) if side == "A"]
        assert 2 * sum(places) == sum(range(4 * rounds))  # of a steady drift both sides get the same


def test_boots_are_the_replicate() -> None:
    """Of equal sides one in twenty is called different, however little the blocks of a boot vary."""
    generator = np.random.default_rng(5)
    called = found = 0
    for _ in range(2000):
        boots = np.exp(generator.normal(0, 0.03, 8))
        called += compare_two_sides(boots[:4].tolist(), boots[4:].tolist()).verdict is not ChangeVerdict.ALIKE
        slower = (boots[4:] * 1.1).tolist()
        found += compare_two_sides(boots[:4].tolist(), slower).verdict is ChangeVerdict.HIGHER
    assert 0.035 <= called / 2000 <= 0.065
    assert found / 2000 >= 0.9
    assert compare_two_sides([1.0], [2.0, 2.0]).verdict is ChangeVerdict.UNKNOWN
    wide = compare_two_sides([1, 1.01], [1.02, 1.03], claims=4).ci or (1, 1)
    narrow = compare_two_sides([1, 1.01], [1.02, 1.03]).ci or (1, 1)
    assert wide[0] < narrow[0] < narrow[1] < wide[1]
    with pytest.raises(ValueError, match="above 0"):
        compare_two_sides([0.0], [1.0])


@pytest.fixture
def rig(tmp_path: Path) -> tuple[str, ...]:
    """Something that restarts in place as one side or the other; on side `slow` the program says twice as much."""
    (tmp_path / "now").write_text("none")
    (tmp_path / "program").write_text(
        f'#!/bin/sh\n[ "$(cat {tmp_path}/now)" = slow ] && echo 20 || echo 10\n'
    )
    (tmp_path / "program").chmod(0o755)
    return (
        "--sides", "fast,slow", "--switch", "echo {side} >next", "--verify", '[ "$(cat now)" = {side} ]',
        "--reboot-command", "cp next now; cat next >>log", "--in-place",
    )  # fmt: skip


def test_a_campaign_restarts_in_between_and_compares(
    guestmark: CommandLine, tmp_path: Path, rig: tuple[str, ...]
) -> None:
    done = guestmark(
        "campaign", "upgrade", *rig, "--rounds", "1", *MEASURE, "--metric", "n=([0-9]+)", "--json", "-", "--",
        "./program", cwd=tmp_path,
    )  # fmt: skip
    assert done.status == 0, done.stderr + guestmark("show", "last").stdout
    assert (tmp_path / "log").read_text().split() == ["fast", "slow", "slow", "fast"]
    found = json.loads(done.stdout)
    assert [boot["side"] for boot in found["boots"]] == ["fast", "slow", "slow", "fast"]
    assert [boot["restarts"] for boot in found["boots"]] == [1, 2, 3, 4]
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert {boot["boot_id"] for boot in found["boots"]} == {boot_id}
    (cell,) = found["cells"]
    assert (cell["boots"], cell["of"]) == ([2, 2], "n")
    assert cell["ratio"] == pytest.approx(2)
    assert cell["verdict"] == "higher"
    runs = guestmark("runs", "--filter", "campaign=upgrade", "--json")
    assert runs.stdout.count('"upgrade"') == 4
    shown = guestmark("campaign", "upgrade", "--status")
    assert "Boots: 2 of fast, 2 of slow, in the order fast slow slow fast." in shown.stdout
    assert guestmark("campaign", "upgrade", *rig, "--", "./program", cwd=tmp_path).status == 2
    assert guestmark("campaign", "upgrade", "--forget").status == 0
    assert guestmark("campaign", "upgrade").status == 2


def test_by_hand_it_says_what_to_do(guestmark: CommandLine, tmp_path: Path) -> None:
    begun = guestmark("campaign", "hand", "--sides", "old,new", *MEASURE, "--", "true", cwd=tmp_path)
    assert begun.status == 0, begun.stderr
    assert "boot 2 of 8 is new: restart the host as new, then type: guestmark campaign hand" in begun.stderr
    again = guestmark("campaign", "hand", cwd=tmp_path)  # in the same boot: nothing is measured twice
    assert "boot 2 of 8 is new" in again.stderr
    state = json.loads(next((guestmark.folder / "state").rglob("hand.json")).read_text())
    assert len(state["done"]) == 1
    assert state["done"][0]["boot_id"] == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    unit_text = guestmark("campaign", "hand", "--unit").stdout
    assert '"campaign" "hand"' in unit_text
    assert f"WorkingDirectory={tmp_path}" in unit_text
    assert f'ExecStart="{CHECKOUT}/guestmark"' in unit_text
    assert guestmark("campaign", "hand", "--label", "a=b", cwd=tmp_path).status == 2


@pytest.mark.parametrize(
    "side",
    [
        "A;touch X",
        "$(touch X)",
        "`touch X`",
        "A\ntouch X",
        "A' ; touch X ; '",
        "-rf",
        "A B",
        "~",
        "*",
        "",
        "A\0",
        "é",
    ],
)
def test_a_side_that_a_shell_would_read_as_code_is_refused(side: str) -> None:
    for commands in (
        SideCommands(switch="ssh lab1 'grub-reboot {side}'"),
        SideCommands(verify='"{side}"'),
        SideCommands(restart="{side}"),
    ):
        with pytest.raises(UsageError, match="a shell would read it as code"):
            commands.check(["B", side])
    SideCommands(verify='test "$GUESTMARK_SIDE" = B').check(["B", side])


def test_a_side_is_never_run(guestmark: CommandLine, tmp_path: Path) -> None:
    begun = guestmark(
        "campaign", "evil", "--sides", "A;touch X,B", "--verify", "test {side}", *MEASURE, "--", "true", cwd=tmp_path
    )  # fmt: skip
    assert begun.status == 2
    assert "GUESTMARK_SIDE" in begun.stderr
    assert not (tmp_path / "X").exists()


def test_commands_have_the_side_in_a_variable(guestmark: CommandLine, tmp_path: Path) -> None:
    sides = ("--sides", "A;touch X,$(touch X)", "--switch", 'printf %s "$GUESTMARK_SIDE" >next')
    verify = ("--verify", 'test "$GUESTMARK_SIDE" = "A;touch X"')
    begun = guestmark("campaign", "named", *sides, *verify, *MEASURE, "--", "true", cwd=tmp_path)
    assert begun.status == 0, begun.stderr
    assert (tmp_path / "next").read_text() == "$(touch X)"
    assert not (tmp_path / "X").exists()


def test_a_unit_can_begin_it(guestmark: CommandLine, tmp_path: Path, rig: tuple[str, ...]) -> None:
    """With `--unit` the command that begins it measures nothing: the unit does, from the first boot on."""
    begun = guestmark(
        "campaign", "unit", "--unit", *rig, "--rounds", "1", *MEASURE, "--", "./program", cwd=tmp_path
    )
    assert begun.status == 0, begun.stderr
    (words,) = [line for line in begun.stdout.splitlines() if line.startswith("ExecStart=")]
    assert words == f'ExecStart="{CHECKOUT}/guestmark" "campaign" "unit"'
    assert not (tmp_path / "log").exists()
    assert guestmark("runs", "--json").stdout.count('"id"') == 0
    assert "0 of 4 boots are measured" in guestmark("campaign", "unit", "--status").stderr


def test_it_goes_on_where_a_restart_stopped_it(
    guestmark: CommandLine, tmp_path: Path, rig: tuple[str, ...]
) -> None:
    """The third restart kills guestmark, as a host that goes down does; the next call goes on."""
    deadly = (
        *rig[:-2],
        "cp next now; cat next >>log; [ $(wc -l <log) = 3 ] && kill -9 $PPID; true",
        "--in-place",
    )
    begun = guestmark(
        "campaign", "killed", *deadly, "--rounds", "1", *MEASURE, "--", "./program", cwd=tmp_path
    )
    assert begun.status == -9
    done = guestmark("campaign", "killed", "--json", "-", cwd=tmp_path)
    assert done.status == 0, done.stderr
    found = json.loads(done.stdout)
    assert [boot["side"] for boot in found["boots"]] == ["fast", "slow", "slow", "fast"]
    assert len({boot["run"] for boot in found["boots"]}) == 4


def test_a_boot_of_the_wrong_side_is_never_measured(guestmark: CommandLine, tmp_path: Path) -> None:
    done = guestmark(
        "campaign", "wrong", "--switch", "true", "--verify", "false", "--reboot-command", "true", "--in-place",
        *MEASURE, "--", "true", cwd=tmp_path,
    )  # fmt: skip
    assert done.status == 3
    assert "--verify fails for A" in done.stderr
    assert guestmark("runs", "--json").stdout.count('"id"') == 0


def state(**changes: object) -> CampaignState:
    fixed = CampaignState("c", "", "", "/", ("A", "B"), tuple("ABBA"), SideCommands(switch="true"))
    return replace(fixed, **changes)  # type: ignore[arg-type]


def test_which_boot_can_be_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(campaigns, "read_host_boot_id", lambda: "second")
    first = MeasuredBoot("A", "first", 0, "r", "6.1")
    assert not state().is_fresh  # nobody knows which side this is
    assert state(commands=SideCommands()).is_fresh
    assert state(done=(first,), commands=SideCommands()).is_fresh
    assert not state(done=(MeasuredBoot("A", "second", 0, "r", "6.1"),), commands=SideCommands()).is_fresh
    assert state(done=(first,), switched=(1, "first", 0)).is_fresh
    assert not state(done=(first,), switched=(1, "second", 0)).is_fresh  # not restarted since
    assert not state(done=(first,), switched=(0, "first", 0)).is_fresh  # switched for the boot before
    assert state(done=(first,), restarts=1, switched=(1, "second", 0)).is_fresh


def test_what_cannot_be_a_campaign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with pytest.raises(UsageError, match="cannot be a campaign's name"):
        Campaign("../x")
    with pytest.raises(UsageError, match="there is no campaign"):
        _ = Campaign("x").state
    kept = Campaign("c", state())
    with kept.lock(), pytest.raises(UsageError, match="another process is running"), Campaign("c").lock():
        pass
    with kept.lock():
        kept.store(restarts=3)
    assert Campaign("c").state == kept.state
    assert kept.path.stat().st_mode & 0o777 == 0o600
    kept.path.write_text("{}")
    with pytest.raises(UsageError, match="not a campaign of this version"):
        _ = Campaign("c").state


def test_the_unit_is_one_for_systemd(tmp_path: Path) -> None:
    path = tmp_path / "campaign.service"
    path.write_text(make_systemd_unit(state(), ["/bin/true", "campaign", 'a "b" %c']))
    assert 'ExecStart="/bin/true" "campaign" "a \\"b\\" %%c"' in path.read_text()
    try:
        checked = subprocess.run(
            ["systemd-analyze", "verify", "--man=no", str(path)], capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        pytest.skip("systemd-analyze is not installed")
    assert "campaign.service:" not in checked.stderr, checked.stderr
