"""The platform `unshare`: this host's kernel, in namespaces of its own."""

from guestmark.core.platform_kind import Program
from guestmark.platforms.host import host_like

PLATFORMS = (
    host_like(
        "unshare",
        "namespaces of this host",
        "guestmark_unshare.platform:UnsharePlatform",
        programs=(Program("unshare", "util-linux"),),
    ),
)
