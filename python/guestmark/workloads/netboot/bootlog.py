"""Why a boot got no further, judged from its packets."""

import struct
from pathlib import Path

_GLOBAL_HEADER, _RECORD_HEADER = 24, 16
_LIMIT = 1 << 20  # bytes; a boot has a few dozen packets


# What iPXE prints itself, and what its loader prints through the firmware, also in a build without console.
_STARTED = ("iPXE initialising devices", "starting execution...")


def what_happened(capture: Path, *, asked: bool, screen: str = "", invariant_tsc: bool | None = None) -> str:
    """One clause for the user; `asked` when iPXE has fetched its first script.

    `screen` is what stands on the screen and went to the serial line, `invariant_tsc` what the processor offers.
    """
    if asked:
        return "it fetched its script and went silent"
    requests, answers, packets = _dhcp(capture)
    if not packets:
        return _without_packets(screen, invariant_tsc)
    if answers:
        return "it got an address, but did not fetch its script"
    if requests:
        return f"it never got an address ({requests} DHCP requests, no answer)"
    return f"it did not ask for an address ({packets} packets)"


def _without_packets(screen: str, invariant_tsc: bool | None) -> str:
    if not any(said in screen for said in _STARTED):
        nothing = "the card sent nothing (its ROM was not started, or the firmware hangs)"
        return nothing if screen.strip() else f"{nothing}; with console=vga its screen would tell"
    # iPXE measures time before it opens a card. Without a timer that it accepts, it waits for ever.
    hung = "its ROM was started and hangs while it initialises devices, before the card is used"
    if invariant_tsc is not False:
        return hung
    return (
        f"{hung}; the processor has no invariant TSC, without which iPXE refuses the TSC as its timer: "
        "a ROM without another timer hangs just here"
    )


def _dhcp(capture: Path) -> tuple[int, int, int]:
    """DHCP requests, DHCP answers and all packets in a pcap file as QEMU writes it."""
    try:
        with capture.open("rb") as stream:
            data = stream.read(_LIMIT)
    except OSError:
        return 0, 0, 0
    requests = answers = packets = 0
    at = _GLOBAL_HEADER
    while at + _RECORD_HEADER <= len(data):
        length = struct.unpack_from("<I", data, at + 8)[0]
        frame = data[at + _RECORD_HEADER : at + _RECORD_HEADER + length]
        at += _RECORD_HEADER + length
        packets += 1
        # IPv4 without options, UDP; ports of BOOTP.
        if len(frame) >= 42 and frame[12:14] == b"\x08\x00" and frame[14] == 0x45 and frame[23] == 17:
            to = struct.unpack_from(">H", frame, 36)[0]
            requests += to == 67
            answers += to == 68
    return requests, answers, packets
