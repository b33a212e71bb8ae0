"""Lines of keys in TOML texts, against texts whose lines are known because they were written one by one."""

import tomllib
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from guestmark.plan.problems import find_line, index_lines

TEXT = '''\
# a comment with [brackets] and key = "value"
name = "x" # and one behind
"quoted key" = 1
a.b . c = """
[not.a.table]
key = 1
"""
list = [
  1, # one
  "two, ]", [3, 4],
  { x = 1, y.z = [5,
    6] },
]
[table]
after = 'it''
[[rows]]
one = 1
[[rows]]
one = 2
[rows.inner]
two = 3
[[rows.deep]]
[[rows.deep]]
three = 2000-01-01 00:00:00
[table.'odd.name']
z = inf
'''.replace("'it''", "'it'")
EXPECTED = {
    ("name",): 2,
    ("quoted key",): 3,
    ("a", "b", "c"): 4,
    ("list",): 8,
    ("list", 0): 9,
    ("list", 1): 10,
    ("list", 2, 1): 10,
    ("list", 3): 11,
    ("list", 3, "x"): 11,
    ("list", 3, "y", "z", 0): 11,
    ("list", 3, "y", "z", 1): 12,
    ("table",): 14,
    ("table", "after"): 15,
    ("rows", 0, "one"): 17,
    ("rows", 1): 18,
    ("rows", 1, "one"): 19,
    ("rows", 1, "inner", "two"): 21,
    ("rows", 1, "deep", 0): 22,
    ("rows", 1, "deep", 1, "three"): 24,
    ("table", "odd.name", "z"): 26,
}


def paths(value: object, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    if path:
        yield path
    if isinstance(value, dict):
        for key, item in value.items():
            yield from paths(item, (*path, key))
    if isinstance(value, list):
        for number, item in enumerate(value):
            yield from paths(item, (*path, number))


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_every_key_is_found_on_its_line(end: str) -> None:
    text = TEXT.replace("\n", end)
    found = index_lines(text)
    assert {path: found.get(path) for path in EXPECTED} == EXPECTED
    assert set(paths(tomllib.loads(text))) <= set(found)


def test_a_path_that_is_not_there_has_the_line_of_what_holds_it() -> None:
    found = index_lines(TEXT)
    assert find_line(found, ("rows", 1, "nothing", "deeper")) == 18
    assert find_line(found, ("nothing",)) is None


words = st.from_regex(r"[a-z][a-z0-9_-]{0,5}", fullmatch=True)
scalars = st.one_of(
    st.integers(), st.booleans(), st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=8)
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=8,
)


def written(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return str(value)
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    if isinstance(value, list):
        return "[" + "".join(f"\n {written(item)}, # ]\n" for item in value) + "]"
    assert isinstance(value, dict)
    return "{" + ", ".join(f"{key} = {written(item)}" for key, item in value.items()) + "}"


@settings(max_examples=40)
@given(st.dictionaries(words, st.dictionaries(words, values, max_size=4), max_size=4))
def test_whatever_a_text_holds_is_found_where_its_key_is_written(document: dict[str, Any]) -> None:
    rows = []
    expected: dict[tuple[str, ...], int] = {}
    for table, content in document.items():
        rows.append(f"[{table}]")
        expected[table,] = len(rows)
        for key, value in content.items():
            begin = len(rows) + 1
            # An inline table may not be broken over lines before TOML 1.1.
            text = f"{key} = {written(value)}"
            if isinstance(value, dict):
                text = text.replace("\n", " ").replace(" # ]", "")
            rows += text.split("\n")
            expected[table, key] = begin
    text = "\n".join(rows)
    found = index_lines(text)
    assert set(paths(tomllib.loads(text))) <= set(found)
    assert {path: found[path] for path in expected} == expected


@given(st.text(max_size=80))
def test_no_text_hangs_it(text: str) -> None:
    index_lines(text)
