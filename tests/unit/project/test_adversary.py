"""The page of confinement has what was seen and nothing else; what a hijacked hypervisor did is seen again."""

import os
from pathlib import Path

import pytest

from guestmark.core.platform_kind import index_platform_kinds
from guestmark.platforms.sandbox.runtimes import RUNTIMES
from tests.adversary.__main__ import MATERIAL, escapes, outcomes
from tests.adversary.host import TOO_MANY, WAYS
from tests.adversary.kills import MACHINES, WITHIN_S
from tests.adversary.results import Results, section_of_page
from tests.framework.kernels import KERNEL
from tests.framework.marks import long_but

_MAIN = "`uml`, `tcg`, `kvm`"


def test_the_page_has_the_results_and_nothing_else() -> None:
    assert section_of_page() == Results.kept().section()


def test_the_policy_is_a_page() -> None:
    text = (Path(__file__).parents[3] / "SECURITY.md").read_text()
    assert len(text.splitlines()) <= 60
    assert max(map(len, text.splitlines())) <= 220


def test_every_machine_was_struck_in_every_way() -> None:
    kept = Results.kept()
    assert kept.within_s == WITHIN_S
    assert {(blow, name) for blow, cells in kept.kills.items() for name in cells} == {
        (str(blow), name) for name, machine in MACHINES.items() for blow in machine.blows
    }


def test_all_material_was_given() -> None:
    kept = Results.kept().material
    assert {name: list(held.files) for name, held in kept.items()} == {
        name: [word for word in arguments if word.startswith("tests/")]
        for name, arguments in MATERIAL.items()
    }


@pytest.mark.skipif(os.getuid() != 0, reason="becomes other users, which takes root")
@pytest.mark.parametrize("name", long_but({_MAIN}, WAYS))
def test_the_page_claims_what_is_seen(name: str) -> None:
    kept = {attempt: cells[name] for attempt, cells in Results.kept().attempts.items()}
    seen = outcomes(name)
    if KERNEL < (6, 14):  # control groups alone count processes there, as the page says
        del kept[TOO_MANY], seen[TOO_MANY]
    assert kept == seen


@pytest.mark.long
@pytest.mark.skipif(os.getuid() != 0, reason="sandboxes take root")
@pytest.mark.parametrize("name", RUNTIMES)
def test_the_page_claims_what_programs_in_sandboxes_do(name: str) -> None:
    if index_platform_kinds()[name].programs[0].path is None:
        pytest.skip(f"needs {name}")
    results = Results.kept()
    if not results.sandboxes_kernel.startswith("{}.{}.".format(*KERNEL)):
        pytest.skip(f"the page has what was seen on Linux {results.sandboxes_kernel}")
    assert {attempt: cells[f"`{name}`"] for attempt, cells in results.sandboxes.items()} == escapes(name)
