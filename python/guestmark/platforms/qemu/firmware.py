"""Finds firmware that distributions install in separate packages, and builds the arguments that boot it."""

from pathlib import Path

from guestmark.core.errors import PlatformUnusableError
from guestmark.setting.base import quote_qemu_value

# OVMF's code and the template of its variables, as distributions install them.
_OVMF = (
    ("/usr/share/OVMF/OVMF_CODE_4M.fd", "/usr/share/OVMF/OVMF_VARS_4M.fd"),
    ("/usr/share/OVMF/OVMF_CODE.fd", "/usr/share/OVMF/OVMF_VARS.fd"),
    ("/usr/share/edk2/ovmf/OVMF_CODE.fd", "/usr/share/edk2/ovmf/OVMF_VARS.fd"),
    ("/usr/share/edk2/x64/OVMF_CODE.4m.fd", "/usr/share/edk2/x64/OVMF_VARS.4m.fd"),
)


def find_ovmf() -> tuple[str, str]:
    """Return OVMF's code and the template of its variables. Raises `PlatformUnusableError` if it is not installed."""
    for pair in _OVMF:
        if all(Path(file).is_file() for file in pair):
            return pair
    raise PlatformUnusableError(
        "UEFI needs the firmware OVMF, which is not installed", hint="install the package ovmf"
    )


def build_flash_arguments(code: str, variables: Path) -> list[str]:
    """Return QEMU's arguments for UEFI: its `code`, and a copy of its variables that the guest may write."""
    return [
        "-drive", f"if=pflash,format=raw,readonly=on,file={code}",
        "-drive", f"if=pflash,format=raw,file={quote_qemu_value(variables)}",
    ]  # fmt: skip
