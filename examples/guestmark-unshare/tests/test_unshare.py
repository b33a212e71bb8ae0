"""The platform keeps guestmark's contract."""

from guestmark.testing import check_platform


def test_it_keeps_the_contract() -> None:
    assert check_platform("unshare") == []
