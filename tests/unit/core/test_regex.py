"""Regular expressions from outside cannot hold the program up."""

import os
import re
import threading

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from guestmark.core import regex
from guestmark.core.errors import UsageError, WorkloadError
from guestmark.core.metric_spec import parse_metric

COSTLY = [
    r"(a+)+$",
    r"(?:a|aa)+$",
    r"(?:a|a?)+$",
    r"(?P<value>(?:a*)*)b",
    r"(.*a){25}b",
    r"(?=(a+)+$)a",
    r"(a?){40}a{40}$",
    r"^(([a-z])+.)+[A-Z]([a-z])+$",
    r"(a*)*\1b",
]


@pytest.mark.parametrize("pattern", COSTLY)
@pytest.mark.timeout(60)
def test_an_expression_that_backtracks_is_ended(pattern: str) -> None:
    with pytest.raises(regex.TooCostlyError, match=r"0\.3 s"):
        regex.find_last_match(pattern, ["a" * 5000 + "!"], 0.3)
    assert regex.find_last_match("n=([0-9]+)", ["n=1 n=2"]) == "2"  # another worker answers


@pytest.mark.timeout(60)
def test_a_metric_says_that_its_expression_is_too_costly() -> None:
    with pytest.raises(
        WorkloadError, match=r"metric n: '\(a\+\)\+\$' takes too much time, over 0.3 s"
    ) as caught:
        parse_metric("n=(a+)+$").extract_value("a" * 60 + "!", limit_s=0.3)
    assert "repeat a group" in caught.value.hint


@pytest.mark.long
@pytest.mark.timeout(60)
def test_an_expression_that_takes_memory_is_ended() -> None:
    with pytest.raises((regex.TooCostlyError, regex.PatternError)):
        regex.find_last_match(r"(?:(a)|(b)|(ab)|.)*c", ["ab" * 30_000_000])


@pytest.mark.timeout(60)
def test_an_expression_that_takes_long_to_compile_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regex, "LIMIT_S", 0.5)
    with pytest.raises(UsageError, match="too large in the regular expression"):
        parse_metric("n=(?i)" + "[\\x00-\\U0010ffff]" * 800)


@pytest.mark.parametrize(
    "pattern", ["(", "a{99999999999999999999}", "(?P<1>a)", "(" * 5000 + ")" * 5000, "\\"]
)
def test_what_is_no_expression_is_refused(pattern: str) -> None:
    with pytest.raises(regex.PatternError):
        regex.read_groups(pattern)


def test_groups_are_counted_and_named() -> None:
    assert regex.read_groups(r"(a)(?P<value>b)(?:c)") == regex.Groups(2, ("value",))


def _by_python(pattern: str, texts: list[str]) -> str | None:
    expression = re.compile(pattern, re.MULTILINE)
    for text in texts:
        matches = list(expression.finditer(text))
        if matches:
            return matches[-1].group(min(expression.groups, 1)) or ""
    return None


@settings(max_examples=150, deadline=None)
@given(
    st.text(alphabet="ab.^$?|()[]\\d\n\ud800é", max_size=12),
    st.lists(st.text(alphabet="ab0\n\ud800é\0\x1b", max_size=12), max_size=3),
)
@example(r"(?<=a)b$", ["ab\nab"])
def test_a_match_is_what_python_finds(pattern: str, texts: list[str]) -> None:
    try:
        expected = _by_python(pattern, texts)
    except re.error:
        with pytest.raises(regex.PatternError):
            regex.find_last_match(pattern, texts)
        return
    assert regex.find_last_match(pattern, texts) == expected


def test_threads_and_children_have_their_own_answers() -> None:
    answers: dict[int, str | None] = {}

    def ask(number: int) -> None:
        answers[number] = regex.find_last_match(f"<({number})>", [f"<{number}>"])

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == {number: str(number) for number in range(8)}
    child = os.fork()
    if child == 0:
        os._exit(0 if regex.find_last_match("x", ["x"]) == "x" else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert regex.find_last_match("y", ["y"]) == "y"
