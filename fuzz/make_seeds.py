"""Make the seed corpus from the builders that the tests use: `.venv/bin/python -m fuzz.make_seeds`."""

import gzip
import struct
from pathlib import Path

import msgspec

from fuzz.targets import CALLS
from guestmark.agent import frames, wire
from guestmark.plan import library
from guestmark.platforms.own import store
from tests.framework import captures as cf

ROOT = Path(__file__).resolve().parent

TYPED = b"""name = "typed"
create = ["tool", "run", "{id}", "{options...}", "--image={image}"]
exec = "ssh {id} {line}"
destroy = "tool rm {id}"
env = { TOOL_TOKEN = "x" }
timeouts = { create = 5, exec = 0.5 }
[parameters]
options = "-a 'b c'"
count = 3
image = { default = "a", levels = ["a", "b"], help = "which" }
"""

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


def replies() -> None:
    """For each call an answer, a failure, and data before both."""
    exited = {**dict.fromkeys(wire.Exited.__struct_fields__, 0), "signal": None, "timed_out": False,
              "oom_killed": False}  # fmt: skip
    answers = {
        "ok": {"id": 1, "ok": exited},
        "error": {"id": 1, "error": {"message": "no", "kind": "os", "errno": 2}},
        "data": {"id": 1, "stream": 1, "data": b"some output"},
        "clock": {"id": 1, "ok": {"monotonic_ns": 5, "realtime_ns": 5, "boottime_ns": 5}},
    }
    encoded = {name: msgspec.msgpack.encode(answer) for name, answer in answers.items()}
    for call in range(len(CALLS)):
        for name, parts in (("ok", ("clock", "data", "ok")), ("error", ("data", "error"))):
            body = b"\n--\n".join(encoded[part] for part in parts)
            put("replies", f"{call}-{name}", bytes([call, 0]) + body)


def elf() -> bytes:
    """The smallest image with a PVH entry: a header, one program header, one note."""
    note = struct.pack("<III", 4, 8, 18) + b"Xen\0" + bytes(8)
    header = b"\x7fELF\x02\x01\x01".ljust(16, b"\0") + struct.pack(
        "<HHIQQQIHHHHHH", 2, 62, 1, 0, 64, 0, 0, 64, 56, 1, 0, 0, 0
    )
    program = struct.pack("<IIQQQQQQ", 4, 0, 120, 0, 0, len(note), len(note), 4)
    return header + program + note + b"Linux version 6.1.0 (x)"


def bzimage(payload: bytes) -> bytes:
    """A boot header, and the payload behind one sector of set-up."""
    head = bytearray(1024)
    head[0x1F1] = 1
    head[0x202:0x206] = b"HdrS"
    struct.pack_into("<H", head, 0x20E, 0x60)
    head[0x260:0x266] = b"6.1.0 "
    struct.pack_into("<II", head, 0x248, 0, len(payload))
    return bytes(head) + payload


def rom() -> bytes:
    """A ROM with one image for the PC and one for EFI."""
    images = b""
    for code, last in ((0, 0), (3, 0x80)):
        image = bytearray(512)
        image[:2] = b"\x55\xaa"
        struct.pack_into("<H", image, 0x18, 0x1C)
        image[0x1C:0x20] = b"PCIR"
        struct.pack_into("<HHHHB", image, 0x20, 0x8086, 0x100E, 0x40, 24, 3)
        struct.pack_into("<H", image, 0x2C, 1)
        image[0x30], image[0x31] = code, last
        struct.pack_into("<HH", image, 0x5C, 0x100F, 0)
        images += bytes(image)
    return images


def requests() -> None:
    """For the agent's decoder: whole frames, one after the other."""
    program = wire.Exec(
        argv=(b"true",), env=(b"A=b",), cwd=b"/", uid=1, gid=1, groups=(1,), stdin=True, time_limit_ns=1,
        output_limit=1, stream=True, pty=wire.Winsize(rows=1, cols=1),
    )  # fmt: skip
    asked = {
        "exec": frames.frame_request(7, wire.EXEC, program),
        "read_file": frames.frame_request(7, wire.READ_FILE, wire.ReadFile(path=b"/x", offset=1, limit=2)),
        "data": frames.frame_request(7, wire.DATA, b"bytes"),
        "kill": frames.frame_request(7, wire.KILL, wire.Kill(signal=9)),
        "mount": frames.frame_request(
            7, wire.MOUNT, wire.Mount(source=b"a", target=b"b", fstype="c", options="d")
        ),
        "winsize": frames.frame_request(7, wire.WINSIZE, wire.Winsize(rows=1, cols=2)),
    }
    for name, frame in asked.items():
        put("requests", name, b"\x40" + frame)
    end = frames.frame_request(7, wire.END, None) + frames.frame_request(8, wire.FACTS, None)
    put("requests", "end", b"\x01" + end)


def said(*parts: tuple[int, bytes]) -> bytes:
    """Messages for the target of that name: what each is, and its bytes, none of which is longer than a byte counts."""
    return b"".join(bytes([kind, 0, len(data), 9]) + data for kind, data in parts)


def messages() -> None:
    """Requests and answers of each protocol, from the client (0) and to it (1)."""
    asked, answered = (
        b"GET /a HTTP/1.1\r\nHost: a\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc",
    )
    chunked = b"HTTP/1.1 404 none\r\nTransfer-Encoding: chunked\r\n\r\n5;x=y\r\n01234\r\n0\r\nA: b\r\n\r\n"
    put(
        "messages",
        "kept",
        said((0, asked), (1, answered), (0, asked + asked), (1, chunked), (0x11, answered)),
    )
    put(
        "messages",
        "open",
        said((2, b"POST / HTTP/1.0\r\n\r\n"), (3, b"HTTP/1.0 200 OK\r\n\r\nabc"), (0x13, b"def")),
    )
    tunnel = (0, b"CONNECT a:1 HTTP/1.1\r\n\r\n"), (1, b"HTTP/1.1 200 OK\r\n\r\n"), (0, b"anything")
    put("messages", "tunnel", said(*tunnel))
    name = b"\0\0\0\x0b\0\x09\0\0\x06a.test"
    hello = bytes(34) + b"\0\0\2\x13\x01\1\0" + len(name).to_bytes(2) + name
    hello = b"\x16\3\1" + (4 + len(hello)).to_bytes(2) + b"\1" + len(hello).to_bytes(3) + hello
    ciphers = b"\x14\3\3\0\1\1"
    put("messages", "tls", said((0, hello), (1, b"\x16\3\3\0\4\2\0\0\0" + ciphers), (0, ciphers)))
    question = b"\0\7\1\0\0\1\0\0\0\0\0\0\1a\4test\0\0\x1c\0\1"
    put("messages", "dns", said((8, question), (8, question), (9, question[:2] + b"\x81\x83" + question[4:])))
    put("messages", "tftp", said((12, b"\0\1file\0octet\0"), (13, b"\0\3\0\1abc"), (12, b"\0\4\0\1")))


def main() -> None:
    """All seeds."""
    messages()
    replies()
    requests()
    put("rom", "two-images", rom())
    put("kernel", "elf", elf())
    put("kernel", "gzip", bzimage(gzip.compress(elf(), mtime=0)))
    for name in library.list_plan_names():
        put("plan", name, library.read_builtin(name).encode())
    for path, shipped in store.list_definition_files():
        if shipped:
            put("machine", path.stem, path.read_bytes())
    put("machine", "typed", TYPED)
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
