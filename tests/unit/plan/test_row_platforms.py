"""Rows of plans for all machines of a kind: ssh and own stand for whatever destination is measured."""

import pytest

from guestmark.core.errors import UsageError
from guestmark.core.platform_spec import parse_platform, parse_row_platform


@pytest.mark.parametrize(
    ("row", "platform", "covered"),
    [
        ("own", "own:podman", True),
        ("ssh", "ssh:me@lab", True),
        ("ssh:lab", "ssh:lab", True),
        ("ssh:lab", "ssh:other", False),
        ("own", "ssh:lab", False),
        ("ssh", "ssh:lab/tcg", False),
        ("tcg", "tcg", True),
        ("tcg", "tcg@arm64", False),
        ("tcg", "tcg/tcg", False),
        ("host", "tcg", False),
    ],
)
def test_a_kind_without_a_destination_covers_each_of_its_machines(
    row: str, platform: str, covered: bool
) -> None:
    assert parse_row_platform(row).covers(parse_platform(platform)) is covered


def test_how_one_of_them_is_named_is_said() -> None:
    assert [parse_row_platform(name).form for name in ("ssh", "own", "tcg")] == [
        "ssh:DEST",
        "own:NAME",
        "tcg",
    ]


def test_only_rows_have_platforms_without_a_destination() -> None:
    with pytest.raises(UsageError, match="not a valid DEST for ssh"):
        parse_platform("ssh")
