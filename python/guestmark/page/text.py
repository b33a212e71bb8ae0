"""Inline text: spans with a tone, and the only functions that make text from outside harmless."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Tone(StrEnum):
    """The role of a piece of text; each renderer decides how it looks."""

    PLAIN = "plain"
    STRONG = "strong"
    SOFT = "soft"  # small print
    CODE = "code"  # to be typed or copied
    NAME = "name"  # of a cell
    FASTER = "faster"  # better than the baseline
    SLOWER = "slower"  # worse than the baseline
    SAME = "same"
    UNCLEAR = "unclear"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of plain text with one tone."""

    text: str
    tone: Tone = Tone.PLAIN


Inline = tuple[Span, ...]

# Characters that a terminal or browser interprets: C0 and C1 controls, line and paragraph separators, signs
# that turn the direction of text or take no room, tags, noncharacters, and halves of surrogate pairs.
_ACTIVE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ufdd0-\ufdef\ufffe\uffff"
    "\U000e0000-\U000e007f\ud800-\udfff]"
)


# Some spreadsheets run text that begins with one of these as a formula.
_FORMULA = ("=", "+", "-", "@", "＝", "＋", "－", "＠")
_NUMBER = re.compile(r"[-+]?[0-9]+(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?", re.ASCII)


def make_inert(text: str, *, lines: bool = False) -> str:
    r"""Return the text with everything active spelled out, as `\x1b` or `\u202e`; white space becomes single spaces.

    With `lines`, line feeds and tabs stay: for consoles. Halves of surrogate pairs, which stand for bytes that are not
    UTF-8, become U+FFFD.
    """
    if not lines and any(space in text for space in "\t\n\v\f\r"):
        text = re.sub(r"[\t\n\v\f\r ]+", " ", text).strip()
    return _ACTIVE.sub(lambda found: _spell_out(found[0], lines=lines), text)


def list_filled_lines(text: str) -> list[str]:
    """Return the lines that are not blank, without the white space around them."""
    return [line_of_text.strip() for line_of_text in text.splitlines() if line_of_text.strip()]


def last_inert_line(text: str, *, longest: int = 300) -> str:
    """Return the last line that is not blank, inert and of at most that many characters; empty without one."""
    for line_of_text in reversed(text.splitlines()):
        if line_of_text.strip():
            return make_inert(line_of_text.strip())[:longest]
    return ""


def escape_for_csv(value: object) -> object:
    """Return a cell for CSV: text inert, with `'` before what spreadsheets take for a formula; numbers as they are."""
    if not isinstance(value, str):
        return value
    text = make_inert(value, lines=True)
    if text.lstrip().startswith(_FORMULA) and not _NUMBER.fullmatch(text):
        return f"'{text}"
    return text


def escape_json(text: str) -> str:
    """Return JSON text of the same meaning with everything active in its strings escaped."""
    return _ACTIVE.sub(lambda found: _escape_for_json(found[0]), text)


def _escape_for_json(character: str) -> str:
    # Outside of strings, a line feed is white space; inside, it is escaped already.
    if character == "\n":
        return character
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))


def _spell_out(character: str, *, lines: bool) -> str:
    if lines and character in "\n\t":
        return character
    code = ord(character)
    if 0xD800 <= code <= 0xDFFF:
        return "\ufffd"
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def line(text: str, tone: Tone = Tone.PLAIN) -> Inline:
    """Return inline text of one span."""
    return (Span(text, tone),)


def spans(*parts: str | Span) -> Inline:
    """Return inline text of several parts; strings are plain."""
    inline = []
    for part in parts:
        inline.append(Span(part) if isinstance(part, str) else part)
    return tuple(inline)


def join_plain_text(inline: Iterable[Span]) -> str:
    """Return the text without its tones."""
    return "".join(span.text for span in inline)


def join_parts(parts: Iterable[str], separator: str = ", ") -> str:
    """Return the parts that are not empty as one text."""
    return separator.join(part for part in parts if part)


# A sentence may be cut before these characters, because only an explanation follows them.
_CLAUSE_ENDS = (": ", "; ", ", ", " (")


def keep_clauses(text: str, width: int) -> str:
    """Return as many whole clauses of a sentence as fit into `width` characters; all of it if not even one does."""
    if len(text) <= width:
        return text
    for at in range(width, 0, -1):
        if text.startswith(_CLAUSE_ENDS, at):
            return text[:at]
    return text
