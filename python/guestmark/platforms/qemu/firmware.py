"""Finds firmware that distributions install in separate packages, and builds the arguments that boot it."""

from pathlib import Path

from guestmark.core.architectures import Architecture
from guestmark.core.errors import PlatformUnusableError
from guestmark.setting.base import quote_qemu_value


def find_uefi(architecture: Architecture) -> tuple[str, str]:
    """Return UEFI's code and the template of its variables. Raises `PlatformUnusableError` if it is not installed."""
    uefi = architecture.uefi
    if uefi is None:
        raise PlatformUnusableError(f"there is no UEFI firmware for {architecture.name} machines")
    for pair in uefi.files:
        if all(Path(file).is_file() for file in pair):
            return pair
    raise PlatformUnusableError(
        f"UEFI for {architecture.name} machines needs firmware that is not installed",
        hint=f"install the package {uefi.package}",
    )


def build_flash_arguments(code: str, variables: Path) -> list[str]:
    """Return QEMU's arguments for UEFI: its `code`, and a copy of its variables that the guest may write."""
    return [
        "-drive", f"if=pflash,format=raw,readonly=on,file={code}",
        "-drive", f"if=pflash,format=raw,file={quote_qemu_value(variables)}",
    ]  # fmt: skip
