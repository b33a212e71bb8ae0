"""Make the seed corpus from the builders that the tests use: `python fuzz/make_seeds.py`."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT.parent / "tests" / "unit"))

import capture_files as cf  # noqa: E402

LIST = (
    b'"1","0.000000","10.0.6.2","10.0.6.1","TCP","66","1028 > irdmi [SYN] Seq=0 Win=65535 Len=0 MSS=1460"\n'
    b'"2","0.000020","10.0.6.1","10.0.6.2","TCP","66","8000 > 1028 [SYN, ACK] Seq=0 Ack=1 Win=5840 Len=0"\n'
    b'"3","2010-05-04 12:13:14.5","fe80::1","fe80::2","HTTP","166","[TCP Retransmission] GET /x HTTP/1.1"\n'
    b'"4","0.1","a","b","UDP","60","Source port: 53  Destination port: 1024"\n'
)


def put(target: str, name: str, data: bytes) -> None:
    """One seed of a target."""
    folder = ROOT / "seeds" / target
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(data)


def main() -> None:
    """All seeds."""
    v6 = cf.conversation(("2001:db8::2", 1028), ("2001:db8::1", 80))
    for number, (order, nanos) in enumerate([("<", False), (">", False), ("<", True), (">", True)]):
        for kind in (cf.NULL, cf.ETHERNET, cf.RAW, cf.SLL, cf.SLL2):
            for name, steps in (("v4", cf.conversation()), ("v6", v6)):
                tags = [0x88A8, 0x8100] if kind == cf.ETHERNET else []
                whole = cf.pcap(cf.frames(steps, kind, tags), kind, order, nanos)
                put("pcap", f"{number}-{kind}-{name}", bytes([number]) + whole[4:])
    for number, order in enumerate("<>"):
        body = cf.interface(tsresol=9, tsoffset=5, order=order) + cf.interface(cf.RAW, 0x94, order=order)
        for at, packet in enumerate(cf.frames(cf.conversation())):
            options = cf.option(2, b"\1\0\0\0" if order == "<" else b"\0\0\0\1", order)
            body += cf.enhanced(packet, packet.ns + at, 0, order, options)
        put("pcapng", f"enhanced-{number}", bytes([number]) + body)
    put("packetlist", "rows", LIST)
    put("flows", "mixed", bytes(range(256)) * 4)


if __name__ == "__main__":
    main()
