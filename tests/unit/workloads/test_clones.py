"""What values of several machines prove: pure functions, and the program that a template is saved with."""

import random
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from guestmark.core.model import Cell, WorkloadSpec
from guestmark.core.platform_spec import PlatformSpec
from guestmark.page.nodes import Note
from guestmark.page.text import join_plain_text
from guestmark.stats.analysis import analyse_run
from guestmark.workloads.clones import Control, Found, Twins, Verdict, Word, judge
from guestmark.workloads.clones.judge import ComparedClock, ShownValues
from guestmark.workloads.clones.sections import conclude_twins
from guestmark.workloads.clones.sources import BOOT_ID, GETRANDOM, SEEDED, SOURCES, TICKETS, Kind, Source
from tests.framework import made_facts
from tests.framework.run_kinds import with_facts
from tests.framework.runs import constructed

_NAME = Source("a name", Kind.NAME, ("cat", "name"), "there is none")
_ADDRESS = Source("an address", Kind.LAYOUT, ("cat", "address"))
_GOOD = Control(name="one", caught=True, said="")


def drawn(seed: int, count: int = 32, skip: int = 0) -> ShownValues:
    generator = random.Random(seed)
    values = [f"{generator.getrandbits(128):032x}" for _ in range(skip + count)]
    return ShownValues(tuple(values[skip:]))


def word(shown: Sequence[ShownValues], source: Source = GETRANDOM, here: ShownValues | None = None) -> Word:
    return judge.judge_source(source, shown, here).word


def test_different_generators_are_distinct() -> None:
    assert word([drawn(seed) for seed in range(10)]) is Word.DISTINCT


def test_two_of_many_are_enough() -> None:
    found = judge.judge_source(GETRANDOM, [*(drawn(seed) for seed in range(9)), drawn(4)])
    assert found.word is Word.IDENTICAL
    assert found.said.startswith("2 of 10 machines")


def test_a_stream_that_one_clone_has_drawn_from_before_is_the_same_stream() -> None:
    assert word([drawn(1), drawn(2), drawn(1, skip=31)]) is Word.IDENTICAL


def test_twins_that_share_values_by_pairs_are_one_group() -> None:
    assert judge.count_largest_group([drawn(1), drawn(1, skip=20), drawn(1, skip=40), drawn(2)]) == 3


def test_a_generator_that_is_stuck_is_seen_although_machines_differ() -> None:
    assert word([ShownValues((f"{number}" * 8,) * 4) for number in range(1, 4)]) is Word.IDENTICAL


def test_one_machine_that_shows_nothing_leaves_it_untried() -> None:
    found = judge.judge_source(_NAME, [ShownValues(("a",)), ShownValues()])
    assert (found.word, found.said) == (Word.UNTRIED, "there is none in 1 of 2 machines")


def test_a_name_of_this_host_is_said_to_be_its_own() -> None:
    found = judge.judge_source(_NAME, [ShownValues(("same",))] * 3, ShownValues(("same",)))
    assert found.of_host
    assert not judge.judge_source(_NAME, [ShownValues(("same",))] * 3, ShownValues(("other",))).of_host


def test_equal_addresses_of_few_bits_may_be_chance() -> None:
    many = [ShownValues((f"{number << 12:x}",)) for number in (*range(200), 7)]
    assert word(many, _ADDRESS) is Word.CHANCE
    assert word([ShownValues(("7f0000000000",))] * 3, _ADDRESS) is Word.IDENTICAL
    wide = [ShownValues((f"{random.Random(number).getrandbits(40) << 12:x}",)) for number in range(5)]
    assert word(wide, _ADDRESS) is Word.DISTINCT
    assert word([*wide, wide[0]], _ADDRESS) is Word.IDENTICAL


@pytest.mark.parametrize("machines", [2, 3, 10, 50])
def test_the_share_that_would_be_seen_is_the_one_that_draws_show(machines: int) -> None:
    share, generator = judge.compute_smallest_visible_share(machines), random.Random(machines)
    seen = sum(sum(generator.random() < share for _ in range(machines)) >= 2 for _ in range(20_000))
    assert 0.94 < seen / 20_000 <= 1.0


def test_a_clock_is_wrong_only_beyond_what_is_uncertain() -> None:
    right = ComparedClock(off=0.3, uncertain=0.25, drift=0.0, looked=1.0)
    assert judge.judge_clocks([right] * 3).word is Word.RIGHT
    behind = ComparedClock(off=-1.5, uncertain=0.02, drift=0.0, looked=1.0)
    assert judge.judge_clocks([right, behind]).word is Word.WRONG
    jumped = ComparedClock(off=0.0, uncertain=0.02, drift=0.5, looked=1.0)
    assert judge.judge_clocks([right, jumped]).word is Word.WRONG


def found(word: Word, *, of_host: bool = False, decides: bool = True) -> Found:
    return Found(source="x", word=word, said="", command="", of_host=of_host, decides=decides)


def test_the_verdict() -> None:
    distinct, same = found(Word.DISTINCT), found(Word.IDENTICAL)
    assert judge.choose_verdict([distinct], [_GOOD]) is Verdict.STRANGERS
    assert judge.choose_verdict([distinct, same], [_GOOD]) is Verdict.TWINS
    assert judge.choose_verdict([distinct, found(Word.IDENTICAL, of_host=True)], [_GOOD]) is Verdict.STRANGERS
    assert (
        judge.choose_verdict([distinct, found(Word.IDENTICAL, decides=False)], [_GOOD]) is Verdict.STRANGERS
    )
    assert judge.choose_verdict([distinct, found(Word.WRONG)], [_GOOD]) is Verdict.STALE
    missed = Control(name="two", caught=False, said="")
    for controls in ([], [_GOOD, missed]):  # a proof that could not have failed is none
        assert judge.choose_verdict([distinct], controls) is Verdict.UNPROVEN
    assert judge.choose_verdict([found(Word.UNTRIED)], [_GOOD]) is Verdict.UNPROVEN


def test_a_server_has_one_ticket_key_and_another_server_another(tmp_path: Path) -> None:
    program = tmp_path / "tickets.py"
    program.write_text(
        f"{TICKETS}server, other = (_ssl._SSLContext(_ssl.PROTOCOL_TLS_SERVER) for _ in range(2))\n"
        "print(ticket_key(server), ticket_key(server), ticket_key(other))\n"
    )
    told = subprocess.run([sys.executable, "-I", "-S", program], capture_output=True, text=True, check=True)
    first, again, other = told.stdout.split()
    assert first == again != other
    assert len(first) == 32


def test_sources_have_names_of_their_own() -> None:
    assert len({source.name for source in SOURCES}) == len(SOURCES)


@pytest.mark.parametrize("own_kernel", [False, True])
def test_a_kernel_where_this_hosts_is_comes_from_this_host_only_where_it_is_the_same(
    own_kernel: bool,
) -> None:
    (kernel,) = (source for source in SOURCES if source.name == "addresses: kernel")
    usual = ShownValues(("ffffffff81000000",))
    found = judge.judge_source(kernel, [usual, usual], usual, own_kernel=own_kernel)
    assert (found.word, found.of_host) == (Word.IDENTICAL, not own_kernel)
    assert ("this host" in found.said) is not own_kernel


@pytest.mark.parametrize(
    ("word", "template", "said"),
    [
        (Verdict.STRANGERS, "t", "tcg: no twins among 10 clones of one template"),
        (Verdict.TWINS, None, "tcg: twins among 10 fresh machines"),
        (Verdict.UNPROVEN, None, "tcg: not proven among 10 fresh machines"),
    ],
)
def test_the_conclusion_says_whether_they_are_twins(word: Verdict, template: str | None, said: str) -> None:
    twins = Twins(verdict=word, machines=10, seen_from=0.4, template=template, found=[], controls=[])
    cell = Cell("tcg", WorkloadSpec("clones"), PlatformSpec.read("tcg"), {}, True)
    run = with_facts(constructed([(cell, 1.0)]), {"tcg": [twins]})
    (workload,) = analyse_run(run.plan, run.trials, run.unusable).workloads
    (note,) = conclude_twins(workload, run)
    assert isinstance(note, Note)
    assert join_plain_text(note.text) == said


@pytest.mark.parametrize("order", [(Verdict.TWINS, Verdict.STRANGERS), (Verdict.STRANGERS, Verdict.TWINS)])
def test_twins_in_any_block_are_twins(order: Sequence[Verdict]) -> None:
    cell = Cell("tcg", WorkloadSpec("clones"), PlatformSpec.read("tcg"), {}, True)
    run = constructed([(cell, 1.0)], blocks=3, failing=[("tcg", 2)])
    # A failed trial has findings as well, which say nothing.
    verdicts = [*order, Verdict.STALE]
    trials = []
    for trial, verdict in zip(run.trials, verdicts, strict=True):
        twins = Twins(verdict=verdict, machines=9, seen_from=0.4, template=None, found=[], controls=[])
        trials.append(replace(trial, facts=made_facts.of(twins)))
    (workload,) = analyse_run(run.plan, trials, run.unusable).workloads
    (note,) = conclude_twins(workload, run)
    assert isinstance(note, Note)
    assert join_plain_text(note.text) == "tcg: twins among 9 fresh machines"


def test_machines_whose_date_shows_nothing_leave_the_clock_untried() -> None:
    assert judge.judge_clocks([]).word is Word.UNTRIED


@pytest.mark.parametrize("shell", ["dash", "bash", "busybox"])
def test_a_shell_alone_makes_the_values_of_the_control(shell: str) -> None:
    """A minimal image has neither Python nor openssl, and machines of it have to be caught all the same."""
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    words = [*([shell, "sh"] if shell == "busybox" else [shell]), "-c", SEEDED.command[2]]
    done = subprocess.run(words, capture_output=True, text=True, check=True, env={})
    values = done.stdout.split()
    assert len(set(values)) == 4
    assert values[0] == "41c67ea6167eb0e72781e494446b9b3d"


def test_machines_on_another_host_s_kernel_are_no_twins() -> None:
    shown = [ShownValues(("5f0c",))] * 3
    apart = judge.judge_source(BOOT_ID, shown, ShownValues(("77aa",)))
    assert (apart.word, apart.of_host) == (Word.IDENTICAL, False)
    found = judge.judge_source(BOOT_ID, shown, shown[0], host="the host that made them")
    assert found.of_host
    assert found.said.endswith("as on the host that made them")
