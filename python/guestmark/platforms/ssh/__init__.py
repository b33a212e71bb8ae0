"""Another machine over ssh: its name is part of the grammar; measuring there is not supported yet."""

from guestmark.core.platform_kind import PlatformKind

PLATFORMS = (
    PlatformKind(
        "ssh",
        "another machine",
        load="",
        holds_guests=True,
        guest=False,
        remote=True,
        takes_destination=True,
    ),
)
