"""Removes known secrets from everything that is stored, printed or written to a file.

Passwords reach guestmark in URLs of ledgers (options, arguments, plans, variables), in libpq's variables and in its
password file, and in variables that the file of a machine sets for its commands. Code that reads one calls
`register_secret`; all output passes `redact_text`. URLs are also redacted by their form, because a command line is
stored before anything has parsed it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from typing import Any

GONE = "***"
# In characters; a shorter secret would match parts of ordinary words, and is easily guessed.
_SHORTEST = 4
_VARIABLES = ("PGPASSWORD", "PGSSLPASSWORD")
# In a word everything up to its last `@` may be the password; in a text a quote or a blank ends the URL.
_IN_WORD = re.compile(r"(?<=://)([^:/?#]*):.*@", re.DOTALL)
_IN_TEXT = re.compile(r"(?<=://)([^\s:/?#'\"<>]*):[^\s'\"<>]*@")
_PARAMETER = re.compile(r"((?:^|[?&;\s'\"])(?:ssl)?password=)[^&\s'\"<>]*", re.IGNORECASE)
_SECRET_NAME = re.compile(
    r"(?:^|_)(?:pass(?:word|wd|phrase)?|pwd|pw|secret|token|credentials?|auth|(?:\w*_)?key)$", re.IGNORECASE
)
# Characters from which any value of a variable may be a secret.
_LONG_VALUE = 8
_known: set[str] = set()


def register_secret(secret: str | None) -> None:
    """Register a secret, in each spelling that a URL has for it, so that `redact_text` removes it."""
    from urllib.parse import quote, quote_plus, unquote  # which most calls do without

    if secret and len(secret) >= _SHORTEST:
        _known.update({secret, quote(secret), quote(secret, safe=""), quote_plus(secret), unquote(secret)})


def register_variables(variables: Mapping[str, str]) -> None:
    """Register the values of variables that are set for a program, as they may be secrets.

    Short ones, such as `true`, occur in any text; they are secrets only if the variable's name indicates it.
    """
    for name, value in variables.items():
        if len(value) >= _LONG_VALUE or _SECRET_NAME.search(name):
            register_secret(value)


def is_secret_name(name: str) -> bool:
    """Return whether a variable or parameter of that name holds a secret, going by the name's last words."""
    return _SECRET_NAME.search(name) is not None


def redact_text(text: str) -> str:
    """Return the text with `***` for every secret in it."""
    text = _PARAMETER.sub(rf"\1{GONE}", _IN_TEXT.sub(rf"\1:{GONE}@", text))
    for secret in sorted(_known | _list_variable_secrets(), key=len, reverse=True):
        text = text.replace(secret, GONE)
    return text


def redact_values(value: Any) -> Any:
    """Return plain values (tables, lists, texts, numbers) with `***` for every secret in their texts."""
    match value:
        case str():
            return redact_text(value)
        case dict():
            return {key: redact_values(inner) for key, inner in value.items()}
        case list() | tuple():
            return [redact_values(inner) for inner in value]
        case _:
            return value


def redact_words(words: Iterable[str]) -> list[str]:
    """Return the words of a command line with `***` for every secret in them."""
    return [redact_text(_IN_WORD.sub(rf"\1:{GONE}@", word)) for word in words]


def redact_url(url: str) -> str:
    """Return a URL for display, with `***` for its password."""
    return redact_words([url])[0]


def drop_password(url: str) -> str:
    """Return a URL for storage without its password, which is looked up again when the URL is used."""
    bare = _IN_WORD.sub(r"\1@", url)
    return re.sub(r"(?<=[?&])(?:ssl)?password=[^&]*&?", "", bare).rstrip("?&")


def _list_variable_secrets() -> set[str]:
    values = [os.environ.get(name, "") for name in _VARIABLES]
    return {value for value in values if len(value) >= _SHORTEST}
