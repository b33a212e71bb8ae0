"""Finds firmware that distributions install in separate packages."""

from pathlib import Path

from guestmark.core.errors import PlatformUnusableError

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
