"""Captures real TCP through a tunnel that loses and reorders packets; runs in its own network namespace.

Every packet for 10.9.0.2 is returned with both addresses swapped, so that the machine communicates with itself through
the tunnel (checksums stay valid). Usage: python -m tests.framework.lossy_tunnel CAPTURE
"""

import fcntl
import os
import socket
import struct
import subprocess
import sys
import threading

from tests.framework.traffic import echo_server, talk

TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 1, 0x1000


def forward(tun: int) -> None:
    """Swap addresses; lose each 23rd packet with payload, let each 31st be overtaken by the next one."""
    count, late = 0, b""
    while True:
        packet = os.read(tun, 65536)
        if packet[0] >> 4 != 4:
            continue
        swapped = packet[:12] + packet[16:20] + packet[12:16] + packet[20:]
        if len(packet) > 200:
            count += 1
            if count % 23 == 0:
                continue
            if count % 31 == 0:
                late = swapped
                continue
        os.write(tun, swapped)
        if late:
            os.write(tun, late)
            late = b""


def main() -> None:
    tun = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(tun, TUNSETIFF, struct.pack("16sH", b"lossy", IFF_TUN | IFF_NO_PI))
    for words in ("addr add 10.9.0.1/24 dev lossy", "link set lossy up", "link set lo up"):
        subprocess.run(["ip", *words.split()], check=True)
    dump = subprocess.Popen(
        ["dumpcap", "-q", "-i", "lossy", "-w", sys.argv[1]], stderr=subprocess.PIPE, text=True
    )
    assert dump.stderr
    for line in dump.stderr:
        if line.startswith("File:"):
            break
    threading.Thread(target=forward, args=(tun,), daemon=True).start()
    listener, stop = echo_server(b"a" * 30_000, 0.001, host="10.9.0.1")
    for _ in range(2):
        talk(("10.9.0.2", listener.getsockname()[1]), 6, 30_000, 0.001)
    stop()
    threading.Event().wait(0.8)
    dump.terminate()
    sys.exit(dump.wait(10))


if __name__ == "__main__":
    socket.setdefaulttimeout(20)
    main()
