"""Every sentence of a report that claims something has figures, and every row of figures a sentence."""

import re
from pathlib import Path

import pytest

from guestmark.page import claims
from guestmark.page.claims import Claim
from guestmark.stats.validity import OrderFinding
from tools import sentences

ROOT = Path(__file__).resolve().parents[3]
TABLE = ROOT / "bench" / "statistics" / "SENTENCES.md"


def rows() -> dict[str, list[str]]:
    lines = [line for line in TABLE.read_text().splitlines() if line.startswith("|")][2:]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {name: rest for name, *rest in cells}


def test_sentences_and_rows_are_the_same() -> None:
    found = rows()
    assert found.keys() == {claim.name for claim in Claim} | {finding.name for finding in OrderFinding}
    for condition, false, power in found.values():
        assert condition
        assert re.search(r"[.]\d\d|1 less", false)
        assert power


def test_every_sentence_is_printed_from_its_template() -> None:
    sources = [path.read_text() for path in (ROOT / "python" / "guestmark").rglob("*.py")]
    for claim in Claim:
        users = [text for text in sources if f"Claim.{claim.name}" in text]
        assert users, f"{claim.name} is printed nowhere"
    fixed = [re.split(r"[{}]", claim.value)[-1].strip(" .") for claim in Claim]
    for part in (each for each in fixed if len(each.split()) > 3):
        assert sum(part in text for text in sources) <= 1, f"{part!r} stands elsewhere, too"


def test_all_that_reports_print_is_listed() -> None:
    assert sentences.compare_with_register() == []


def test_what_claims_something_names_a_row() -> None:
    for module, texts in sentences.read_register(sentences.REGISTER.read_text()).items():
        for text, kind in texts.items():
            assert kind in {"fact", "figure", "advice"} or kind in Claim.__members__, (module, text)


def test_words_that_compare_are_no_facts() -> None:
    """A text that says which is faster, equal or changed claims something, unless it says what nobody knows."""
    comparing = re.compile(r"\b(faster|slower|equal|alike|changed|fastest|quickest|more slow runs)\b")
    for module, texts in sentences.read_register(sentences.REGISTER.read_text()).items():
        for text, kind in texts.items():
            if comparing.search(text) and not text.startswith(_NO_CLAIMS):
                assert kind in Claim.__members__, (module, text, kind)


_NO_CLAIMS = (
    "Two runs can show that something changed, not what.",
    "Main effects on {}, other factors held equal",
    "{}; {} would show whether it changed",
    "{}, measured at different times: the host may have changed in between",
    "Nothing recorded about the host has changed since then",
)


def test_a_new_sentence_is_missed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "report").mkdir()
    (tmp_path / "page").mkdir()
    (tmp_path / "report" / "new.py").write_text(
        'def say(a):\n    """No text."""\n    return f"{a} wins every time"\n'
    )
    monkeypatch.setattr(sentences, "PACKAGE", tmp_path)
    missing = [line for line in sentences.compare_with_register() if ": add " in line]
    assert missing == ["report/new.py: add - KIND: `{} wins every time`"]


def test_no_sentence_is_left_that_had_no_support() -> None:
    gone = (
        "smaller differences are not claimed",
        "this one agrees",
        "equal cells are equal",
        "may be due to it",
        "The filesystem makes no difference",
    )
    for path in (ROOT / "python" / "guestmark").rglob("*.py"):
        for words in gone:
            assert words not in path.read_text(), path
    assert Path(claims.__file__).name == "claims.py"
