"""What SECURITY.md claims of a hypervisor that was taken over is what is seen when one is."""

import os

import pytest

from tests.adversary.__main__ import REACHED, written
from tests.adversary.host import WAYS, taken_over

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="becomes other users, which takes root")


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.long] if number else []) for number, name in enumerate(WAYS)],
)
def test_the_page_claims_what_is_seen(name: str) -> None:
    seen = taken_over(WAYS[name])
    page = written()
    column = list(WAYS).index(name)
    claimed = {attempt: page[attempt][column] != REACHED for attempt in seen}
    assert claimed == {attempt: said != "reached" for attempt, said in seen.items()}
