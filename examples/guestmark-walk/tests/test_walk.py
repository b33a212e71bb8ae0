"""The workload keeps guestmark's contract."""

from guestmark.testing import check_workload


def test_it_keeps_the_contract() -> None:
    assert check_workload("walk", {"directory": "/usr/share/doc"}) == []
