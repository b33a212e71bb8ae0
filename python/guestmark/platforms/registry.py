"""Platforms by name. A new one is a file and one line here (or one call of `register`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from guestmark.core.errors import UsageError
from guestmark.core.platform_spec import PlatformSpec, parse_platform

if TYPE_CHECKING:
    from guestmark.platforms.base import Platform

Factory = Callable[[PlatformSpec], "Platform"]


def _host(_spec: PlatformSpec) -> Platform:
    from guestmark.platforms.host.platform import HostPlatform

    return HostPlatform()


def _qemu(spec: PlatformSpec) -> Platform:
    from guestmark.platforms.qemu.platform import QemuPlatform

    return QemuPlatform(spec.inner.kind, spec.inner.arch or "")


def _uml(_spec: PlatformSpec) -> Platform:
    from guestmark.platforms.uml.platform import UmlPlatform

    return UmlPlatform()


def _nested(spec: PlatformSpec) -> Platform:
    from guestmark.platforms.nested.platform import NestedPlatform

    return NestedPlatform(spec)


_factories: dict[str, Factory] = {"host": _host, "kvm": _qemu, "tcg": _qemu, "uml": _uml, "nested": _nested}
_platforms: dict[str, Platform] = {}


def register(kind: str, factory: Factory) -> None:
    """Makes a platform known under `kind`: one of the grammar's kinds, or `nested` for everything with a `/`.

    Raises `ValueError` when the kind is taken.
    """
    if _factories.setdefault(kind, factory) is not factory:
        raise ValueError(f"platform {kind!r} is registered twice")


def kinds() -> tuple[str, ...]:
    """The kinds that can be made, in the order the doctor shows them."""
    return tuple(_factories)


def get(name: str) -> Platform:
    """The platform of that name; the same object each time.

    Raises `UsageError` for a name outside the grammar or a platform this version cannot make.
    """
    spec = parse_platform(name)
    key = str(spec)
    if key not in _platforms:
        kind = "nested" if spec.nested else spec.inner.kind
        factory = _factories.get(kind)
        if factory is None:
            what = "nested platforms are" if spec.nested else f"{kind} is"
            raise UsageError(
                f"platform {name!r}: {what} not supported by this version",
                hint=f"known: {', '.join(_factories)}",
            )
        _platforms[key] = factory(spec)
    return _platforms[key]
