"""What is known of a trial beside its measurements, as it is kept, and read by the types of `core.findings`."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import msgspec

F = TypeVar("F", bound="msgspec.Struct")


class Facts:
    """The facts of a trial that has ended. Those that this version does not know are kept as well.

    Equal to facts that are kept as the same. Not a dataclass, so that it is stored as what is kept.
    """

    __slots__ = ("kept",)
    kept: Mapping[str, Any]  # by key, in builtin types: as it is stored, and shown in result documents

    def __init__(self, kept: Mapping[str, Any] | None = None) -> None:
        self.kept = {} if kept is None else kept

    def of(self, kind: type[F], name: str = "") -> F | None:
        """The facts of that type, added under that name.

        None when the trial has none of them, or has them in a form that this version does not know.
        """
        import msgspec

        start = prefix(name)
        found = {key: self.kept[start + key] for key in keys(kind) if start + key in self.kept}
        if not found:
            return None
        try:
            return msgspec.convert(found, kind)
        except msgspec.ValidationError:
            return None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Facts) and self.kept == other.kept

    __hash__ = None  # type: ignore[assignment] # mappings have none

    def __repr__(self) -> str:
        return f"Facts({self.kept!r})"


@functools.cache
def keys(kind: type[msgspec.Struct]) -> tuple[str, ...]:
    """The keys under which facts of that type are kept."""
    import msgspec

    return tuple(known.encode_name for known in msgspec.structs.fields(kind))


def prefix(name: str) -> str:
    """What stands before the keys of facts that are kept under a name."""
    return f"{name}_" if name else ""
