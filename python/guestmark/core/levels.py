"""The typed levels of factors, read from their text once.

Text identifies a cell in plans, ids, ledgers and documents. Code that acts on a level looks it up in `Levels` with the
factor itself as the key, so that the type checker knows its type.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar, cast

from guestmark.core.factor import Factor, Setting

L = TypeVar("L")


class Levels:
    """Levels by factor. Equal to levels with the same texts; not a dataclass, so that nothing stores it.

    A level is read when it is first asked for, not in the constructor: a stored cell may have factors that this version
    does not know, or levels that it refuses, and is still shown. `texts` must not change afterwards.
    """

    __slots__ = ("_read", "texts")
    texts: Mapping[
        str, str
    ]  # canonical spellings by the factor's name, for ids, command lines and the ledger

    def __init__(self, texts: Mapping[str, str]) -> None:
        self.texts = texts
        self._read: dict[str, object] = {}

    def get(self, factor: Setting[L]) -> L | None:
        """Return the level that was given; None if none was. Raises `ValueError` for one that cannot be read."""
        return self[factor] if factor.name in self.texts else None

    def __getitem__(self, factor: Setting[L]) -> L:
        """Return the given level, else the factor's default.

        Raises `KeyError` if there is neither, and `ValueError` for a level that cannot be read.
        """
        if factor.name not in self._read:
            text = self.texts.get(factor.name, factor.default)
            if factor.name not in self.texts and not factor.default:
                raise KeyError(factor.name)
            self._read[factor.name] = factor.read(text)
        # Names of factors are unique (`core.discovery.index_by_name`), so what is kept under one has its factor's type.
        return cast("L", self._read[factor.name])

    def __contains__(self, factor: Factor) -> bool:
        return factor.name in self.texts

    def with_defaults(self, defaults: Mapping[str, str]) -> Levels:
        """Return these levels, and those of `defaults` for factors without a level."""
        return Levels({**defaults, **self.texts})

    def with_levels(self, texts: Mapping[str, str]) -> Levels:
        """Return these levels with some replaced or added."""
        return Levels({**self.texts, **texts})

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Levels) and dict(self.texts) == dict(other.texts)

    def __hash__(self) -> int:
        return hash(frozenset(self.texts.items()))

    def __repr__(self) -> str:
        return f"Levels({dict(self.texts)!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        # Levels that were read are left out, because their objects may not be picklable.
        return Levels, (dict(self.texts),)
