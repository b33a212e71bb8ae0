"""The platform `unshare`: this host's kernel, in namespaces of its own."""

from guestmark.core.platform_kind import Program
from guestmark.platforms.descriptions import PlatformClass, describe_host_like


def load_platform_class() -> PlatformClass:
    """Imports the class that starts its machines."""
    from guestmark_unshare.platform import UnsharePlatform

    return UnsharePlatform


PLATFORMS = (
    describe_host_like(
        "unshare",
        "namespaces of this host",
        load_platform_class,
        programs=(Program("unshare", "util-linux"),),
    ),
)
