"""Plans of any text are read in time that grows with their length, or refused in a line."""

import re
import time
import tomllib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from guestmark.core.errors import UsageError
from guestmark.core.toml import read_toml
from guestmark.plan.library import _BUILTIN, apply_overrides
from guestmark.plan.load import load_outline
from tests.framework import PACKAGES

_LIMIT_S = 6.0
ATTACKS = {
    "an integer of 4,300 digits": "x = " + "9" * 4300,
    "an integer of 5,000 digits": "x = " + "9" * 5000,
    "a hexadecimal integer of 5,000 digits": "x = 0x" + "f" * 5000,
    "900 dotted keys": ".".join("a" * 900) + " = 1",
    "900 dotted keys in a header": "[" + ".".join("a" * 900) + "]",
    "3,000 tables deep": "\n".join(f"[{'.'.join('a' * depth)}]" for depth in range(1, 400)),
    "3,000 lists deep": "x = " + "[" * 3000 + "]" * 3000,
    "3,000 inline tables deep": "x = " + "{a = " * 3000 + "1" + "}" * 3000,
    "headers and keys together": "[" + ".".join("a" * 30) + "]\n" + ".".join("a" * 30) + " = 1",
    "40 kB of dotted keys": "\n".join(f"{'.'.join('a' * 20)}.k{number} = 1" for number in range(1000)),
    "40 kB of one dotted key": ".".join(f"k{number}" for number in range(8000)) + " = 1",
    "300,000 numbers": "x = [" + "1, " * 300_000 + "]",
    "45,000 numbers": "x = [" + "1, " * 45_000 + "]",
    "60,000 tables": "\n".join(f"[t{number}]" for number in range(60_000)),
    "20,000 tables": "\n".join(f"[t{number}]" for number in range(20_000)),
    "20,000 workloads": "\n".join(f"[workloads.w{number}]" for number in range(20_000)),
    "20,000 questions": "\n".join("[[question]]" for _ in range(20_000)),
    "20,000 unknown keys": "\n".join(f"k{number} = 1" for number in range(20_000)),
    "dots with room": " . ".join("a" * 900) + " = 1",
    "quoted parts": ".".join(['"a.b"'] * 900) + " = 1",
    "an open string": 'x = """' + "a" * 1_000_000,
    "open strings": 'x = """\\' * 100_000,
    "quotes": '"' * 900_000,
    "apostrophes": "'" * 900_000,
    "comments": "#" * 900_000,
    "2 MB": "#\n" * 1_000_000,
}


@pytest.mark.parametrize("what", ATTACKS)
def test_a_plan_of_anything_is_refused_in_seconds(what: str) -> None:
    for text in (ATTACKS[what], f'name = "x"\ntitle = "x"\nplatforms = ["host"]\n{ATTACKS[what]}'):
        begin = time.process_time()
        with pytest.raises(UsageError) as caught:
            load_outline(text, "a plan")
        assert time.process_time() - begin < _LIMIT_S
        assert len(caught.value.message) < 400
        assert caught.value.message.startswith("a plan ")


@pytest.mark.parametrize("key", [".".join("a" * 900), "[" * 900, "x" * 5000 + ".", '"' * 900])
def test_an_override_of_anything_is_refused(key: str) -> None:
    with pytest.raises(UsageError):
        load_outline('name = "x"', "a plan", overrides=[f"{key}=1"])
    assert apply_overrides({}, [f"a={'[' * 3000}"]) == {"a": "[" * 3000}


@settings(max_examples=300, deadline=None)
@given(st.text(st.sampled_from("ab.=[]{}\"'\\\n#, 1"), max_size=60))
def test_what_is_read_is_what_pythons_reader_reads(text: str) -> None:
    try:
        expected = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        with pytest.raises(UsageError):
            read_toml(text, "a plan")
        return
    assert read_toml(text, "a plan") == expected


def test_the_built_in_plans_are_far_from_the_limits() -> None:
    for file in _BUILTIN.glob("*.toml"):
        assert read_toml(10 * "#\n" + file.read_text(), file.name)


def test_nothing_else_reads_toml() -> None:
    package = PACKAGES / "guestmark"
    found = [
        str(file.relative_to(package))
        for file in package.rglob("*.py")
        if re.search(r"\btomllib\.loads?\b", file.read_text()) and file.name != "toml.py"
    ]
    assert found == []
