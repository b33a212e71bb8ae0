"""Quotes untrusted words as a shell reads them: every invisible character is spelled out.

A page or a terminal may show a line feed, a tab or 3,000 spaces as one space, and some characters not at all, so that
what looks like a comment could hide a command.
"""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Iterable

# Characters that no shell changes, as in `shlex.quote`.
_PLAIN = re.compile(r"[A-Za-z0-9_@%+=:,./-]+", re.ASCII)
_NAMED = {"\n": r"\n", "\t": r"\t", "\r": r"\r", "\\": r"\\", "'": r"\'"}
# Letters and symbols by their category that are drawn as blanks: fillers of Hangul, blank Braille.
_BLANK = frozenset("\u115f\u1160\u2800\u3164\uffa0")
# Texts of more characters are shown with their length.
_LONG = 100


def quote_words(words: Iterable[str]) -> str:
    """Return the words as one line for a shell, each exactly as it is."""
    return " ".join(map(quote_word, words))


def quote_word(word: str) -> str:
    """Return the word as a shell takes it: plain, in quotes, or as `$'…'` with everything invisible spelled out.

    Single spaces stay; several in a row, and those at the ends, become `\\x20` each. Bytes that are not text become
    `\\xff`.
    """
    if _PLAIN.fullmatch(word):
        return word
    if (seen := spell_out(word)) == word:
        return f"'{word}'"
    return f"$'{seen}'"


def spell_out(text: str) -> str:
    """Return the text with quotes, backslashes and everything that cannot be seen spelled out, as inside `$'…'`."""
    last = len(text) - 1
    spelled = []
    for at, character in enumerate(text):
        is_single_blank = 0 < at < last and text[at - 1] != " " and text[at + 1] != " "
        if character == " " and not is_single_blank:
            spelled.append(r"\x20")
        else:
            spelled.append(_spell_character(character))
    return "".join(spelled)


def describe_length(text: str) -> str:
    """Describe the length of a text for readers who see only part of it; empty for a short single line."""
    lines = text.count("\n") + 1
    if len(text) <= _LONG and lines == 1:
        return ""
    said = f"{len(text):,} characters"
    if lines > 1:
        said += f", {lines:,} lines"
    return said


def _spell_character(character: str) -> str:
    if character in _NAMED:
        return _NAMED[character]
    if character == " " or _is_visible(character):
        return character
    code = ord(character)
    if code < 0x80:
        return f"\\x{code:02x}"
    # A byte that is not UTF-8, as `os.fsdecode` represents it.
    if 0xDC80 <= code <= 0xDCFF:
        return "".join(f"\\x{byte:02x}" for byte in os.fsencode(character))
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _is_visible(character: str) -> bool:
    """Return whether a character has its own shape and place: no control, format, separator or combining mark."""
    return unicodedata.category(character)[0] in "LNPS" and character not in _BLANK
