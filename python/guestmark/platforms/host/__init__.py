"""This machine itself, without a hypervisor."""

from guestmark.platforms.descriptions import PlatformClass, describe_host_like
from guestmark.setting.location import LOCATION
from guestmark.setting.network import HOST_NETWORK_FACTORS


def load_platform_class() -> PlatformClass:
    """Imports the class that starts an agent on this host."""
    from guestmark.platforms.host_like import HostPlatform

    return HostPlatform


PLATFORMS = (
    describe_host_like(
        "host", "this machine itself", load_platform_class, LOCATION, *HOST_NETWORK_FACTORS, first=True
    ),
)
