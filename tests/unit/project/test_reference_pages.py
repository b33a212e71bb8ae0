"""tools/reference.py: the reference has everything that the program knows, and pages name no part that is not made."""

import re
from pathlib import Path

import pytest

from guestmark.cli.verbs import VERBS
from guestmark.core import registry
from guestmark.core.architectures import ARCHITECTURES
from guestmark.core.platform_kind import list_platform_forms
from guestmark.setting.base import DiskSetting
from tools import reference

ROOT = Path(__file__).resolve().parents[3]


def test_every_command_has_a_heading_and_its_options() -> None:
    text = reference.describe_commands()
    assert re.findall(r"^## (\S+)$", text, re.MULTILINE) == list(VERBS)
    assert "`--on PLATFORM,...`" in text
    assert text.count("`-h, --help`") == len(VERBS)


def test_every_workload_has_a_heading() -> None:
    headings = re.findall(r"^## (\S+)$", reference.describe_workloads(), re.MULTILINE)
    assert headings == list(registry.index_workload_kinds())


def test_parameters_are_described_without_the_language_they_are_written_in() -> None:
    text = reference.describe_workloads()
    rows = re.findall(r"^\| `(\w+)` \| ([^|]*) \| ([^|]*) \| ([^|]*) \|$", text, re.MULTILINE)
    assert len(rows) == sum(
        len(kind.params_model().model_fields) for kind in registry.index_workload_kinds().values()
    )
    for name, says, kind, default in rows:
        assert says, name
        assert kind, name
        assert not re.search(r"\[|\]|Optional|Annotated|Field|dict|str\b", kind), (name, kind)
        assert not re.search(r"\['|None|True|False|Field", default), (name, default)
    assert ("amount", "amount of data to move", "size", "`1500M`") in rows
    assert ("rounds", "directories to fill and remove", "whole number, 1 to 10000", "`16`") in rows


def test_every_factor_and_platform_has_a_row() -> None:
    factors, platforms = reference.describe_factors(), reference.describe_platforms()
    assert all(f"\n| `{name}` |" in factors for name in registry.factors())
    rows = re.findall(r"^\| `([^`]+)` \|", platforms, re.MULTILINE)
    assert len(rows) == len(list_platform_forms())
    assert {"host", "ssh:DEST", "user@ARCH", *registry.list_platform_names()} <= set(rows)


def test_every_architecture_has_a_row() -> None:
    rows = re.findall(r"^\| `(\w+)` \|", reference.describe_architectures(), re.MULTILINE)
    assert rows == list(ARCHITECTURES)


def test_no_page_lists_factors_of_disks_by_hand() -> None:
    named = {name for name, factor in registry.factors().items() if isinstance(factor, DiskSetting)}
    page = (ROOT / "docs" / "reference" / "disks.md").read_text()
    assert not named & set(re.findall(r"^\| `(\w+)`", page, re.MULTILINE))


def test_rows_have_as_many_columns_as_their_head() -> None:
    for part in ("platforms", "factors", "architectures"):
        lines = reference.PARTS[part]().strip().splitlines()
        columns = {len(re.findall(r"(?<!\\)\|", line)) for line in lines}
        assert len(columns) == 1, part


def test_pages_ask_for_parts_that_exist() -> None:
    asked = [
        mark for page in (ROOT / "docs").rglob("*.md") for mark in reference.MARK.findall(page.read_text())
    ]
    assert sorted(asked) == sorted(reference.PARTS)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a_b*c", r"a\_b\*c"),
        ("`a_b` c_d", r"`a_b` c\_d"),
        (r"written \,", r"written \\,"),
        ("<x|y>", r"\<x\|y\>"),
    ],
)
def test_help_texts_are_no_markup_but_for_code(text: str, shown: str) -> None:
    assert reference._as_markdown(text) == shown
