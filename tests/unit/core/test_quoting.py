"""Words of strangers: what a shell takes is what was meant, and nothing of it is invisible."""

import os
import subprocess

from hypothesis import given, settings
from hypothesis import strategies as st

from guestmark.core.quoting import describe_length, quote_word, quote_words
from guestmark.page.text import make_inert

_WORDS = st.text(
    st.one_of(
        st.characters(exclude_characters="\0", exclude_categories=["Cs"]),
        st.sampled_from(" \t\n\r\v\f\x1b\x7f\x85\xa0\u2028\u202e\u200b\u3164\u2800'\\\"$`!#;\udcff\udc80"),
    ),
    max_size=30,
)


@settings(max_examples=300, deadline=None)
@given(st.lists(_WORDS, min_size=1, max_size=4))
def test_a_shell_takes_every_word_as_it_is(words: list[str]) -> None:
    script = f"printf '%s\\0' {quote_words(words)}"
    done = subprocess.run(
        ["bash", "-c", script], capture_output=True, check=True, env={**os.environ, "LC_ALL": "C.UTF-8"}
    )
    assert done.stdout == b"".join(os.fsencode(word) + b"\0" for word in words)


@settings(max_examples=300, deadline=None)
@given(st.lists(_WORDS, min_size=1, max_size=4))
def test_nothing_is_lost_where_white_space_is_joined(words: list[str]) -> None:
    said = quote_words(words)
    assert make_inert(said) == said == " ".join(said.split())
    assert all(character == " " or character.isprintable() for character in said)


def test_a_command_after_a_wall_of_blanks_is_seen() -> None:
    script = "echo hello #" + 3000 * " " + 400 * "\n" + "rm -rf ~"
    assert quote_word(script).endswith(r"\n\n\nrm -rf ~'")
    assert describe_length(script) == "3,420 characters, 401 lines"
    assert quote_word("a b") == "'a b'"
    assert quote_word("") == "''"
    assert describe_length("ls -l") == ""
