"""Creates and keeps the objects that start machines, one for each platform name."""

from __future__ import annotations

from guestmark.core import registry
from guestmark.core.errors import UsageError
from guestmark.core.platform_spec import Layer, PlatformSpec, parse_platform
from guestmark.platforms.base import Platform

_platforms: dict[PlatformSpec, Platform] = {}


def get_platform(platform: PlatformSpec | str) -> Platform:
    """Returns the platform of that name, the same object each time.

    Raises `UsageError` for a name outside the grammar or a platform this version cannot start, `PlatformUnusableError`
    for a combination that this host does not support.
    """
    spec = parse_platform(platform) if isinstance(platform, str) else platform
    if spec not in _platforms:
        _platforms[spec] = _create_platform(spec)
    return _platforms[spec]


def get_layer_platform(layer: Layer) -> Platform:
    """Returns the platform for machines of one layer, without nesting."""
    return get_platform(PlatformSpec((layer,)))


def _create_platform(spec: PlatformSpec) -> Platform:
    for layer in spec.layers:
        if not layer.description.is_supported:
            raise UsageError(
                f"platform {str(spec)!r}: {layer.kind} is not supported by this version",
                hint=f"known: {', '.join(sorted(registry.list_platform_names()))}",
            )
    kind = spec.outer.description
    load_class = kind.load_nested_class if spec.is_nested else kind.load_class
    if load_class is None:
        raise UsageError(
            f"platform {str(spec)!r}: guests on {kind.help.partition(',')[0]} are not supported by this version",
            hint=f"measure the machine itself: {spec.outer}",
        )
    platform: Platform = load_class()(spec if spec.is_nested else spec.inner)
    return platform
