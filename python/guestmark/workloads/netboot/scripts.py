"""Scripts for iPXE. Its commands and settings: https://ipxe.org/cmd and https://ipxe.org/cfg."""

BOOT = "boot.ipxe"  # the file DHCP names
# Name in the query, and the setting; settings that are no text have a form of their own that needs no escapes.
_FACTS = {
    "platform": "platform:uristring",
    "version": "version:uristring",
    "chip": "net0/chip:uristring",
    "mac": "net0/mac",
    "ip": "net0/ip",
}


def boot(control: str) -> str:
    """The first script: iPXE says what it is, and asks what to do. `control` is the URL of the control server."""
    facts = "&".join(f"{name}=${{{setting}}}" for name, setting in _FACTS.items())
    return f"#!ipxe\nchain --replace {control}/hello?{facts}\n"


def first(control: str) -> str:
    """For networks whose DHCP names no boot file: the script that iPXE is started with."""
    return f"#!ipxe\ndhcp && chain {control}/{BOOT} || shell\n"


def hand_over(control: str, data: str, arguments: str) -> str:
    """Fetches a kernel and its initramfs, says so, and boots."""
    return "\n".join([
        "#!ipxe",
        f"kernel --name kernel {data}/kernel {arguments} || goto failed",
        f"initrd --name initrd {data}/initrd || goto failed",
        f"imgfetch --name seen {control}/booting || goto failed",
        "imgfree seen",
        "boot || goto failed",
        *_failed(control),
    ]) + "\n"  # fmt: skip


def _failed(control: str) -> list[str]:
    return [":failed", f"chain --replace {control}/failed?errno=${{errno}}"]


def fetch(control: str, data: str, numbers: range) -> str:
    """Fetches files one after the other; each is kept until the control server has looked at it."""
    lines = ["#!ipxe"]
    for number in numbers:
        lines += [
            f"imgfetch --name file {data}/{number} || goto failed",
            f"imgfetch --name seen {control}/fetched?number={number} || goto failed",
            "imgfree seen",
            "imgfree file",
        ]
    lines += [
        f"chain --replace {control}/done || goto failed",
        *_failed(control),
    ]
    return "\n".join(lines) + "\n"
