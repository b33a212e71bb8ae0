"""Runs inside a new network namespace: creates a tap device and the sockets on it, passes them on, and ends.

`tap_setup.py CHANNEL_FD ADDRESS PREFIX_LENGTH PORT KIND`, KIND being the type of the file server's socket. The
sockets and the tap's descriptor keep the namespace alive; when the last of them is closed, the kernel removes it.
Only the standard library is imported.
"""

import array
import fcntl
import os
import socket
import struct
import sys

NAME = "boot0"
_TUNSETIFF, _IFF_TAP, _IFF_NO_PI = 0x400454CA, 0x0002, 0x1000
_SIOCSIFADDR, _SIOCSIFNETMASK, _SIOCGIFFLAGS, _SIOCSIFFLAGS = 0x8916, 0x891C, 0x8913, 0x8914
_IFF_UP = 1
_BACKLOG = 64


def main(channel_fd: int, address: str, prefix: int, port: int, kind: int) -> None:
    """Sends the tap, sockets for DHCP, ICMPv6, control and files, and a client of the file server, in this order."""
    tap = os.open("/dev/net/tun", os.O_RDWR)
    # No virtio header, which would precede every packet in the capture.
    flags = _IFF_TAP | _IFF_NO_PI
    fcntl.ioctl(tap, _TUNSETIFF, struct.pack("16sH22x", NAME.encode(), flags))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        mask = socket.inet_ntoa(struct.pack(">I", 0xFFFFFFFF << (32 - prefix) & 0xFFFFFFFF))
        for request, value in ((_SIOCSIFADDR, address), (_SIOCSIFNETMASK, mask)):
            packed = struct.pack("16sHH4s8x", NAME.encode(), socket.AF_INET, 0, socket.inet_aton(value))
            fcntl.ioctl(probe, request, packed)
        for device in (NAME, "lo"):
            current = fcntl.ioctl(probe, _SIOCGIFFLAGS, struct.pack("16sH22x", device.encode(), 0))
            (up,) = struct.unpack_from("H", current, 16)
            fcntl.ioctl(probe, _SIOCSIFFLAGS, struct.pack("16sH22x", device.encode(), up | _IFF_UP))
    dhcp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    dhcp.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
    dhcp.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, NAME.encode())
    dhcp.bind(("", 67))
    router = socket.socket(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6)
    router.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, NAME.encode())
    router.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_IF, socket.if_nametoindex(NAME))
    router.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_HOPS, 255)  # RFC 4861, 6.1.2
    routers = socket.inet_pton(socket.AF_INET6, "ff02::2") + struct.pack("@I", socket.if_nametoindex(NAME))
    router.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP, routers)
    control, data = _open_listener(address, 0), _open_listener(address, port, socket.SocketKind(kind))
    client = socket.socket(socket.AF_INET, data.type)
    # The connection stays in the queue until the server accepts it.
    client.connect(data.getsockname())
    fds = array.array(
        "i", [tap, dhcp.fileno(), router.fileno(), control.fileno(), data.fileno(), client.fileno()]
    )
    with socket.socket(fileno=channel_fd) as channel:
        channel.sendmsg([b"ok"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)])


def _open_listener(address: str, port: int, kind: socket.SocketKind = socket.SOCK_STREAM) -> socket.socket:
    sock = socket.socket(socket.AF_INET, kind)
    sock.bind((address, port))
    if kind is socket.SOCK_STREAM:
        sock.listen(_BACKLOG)
    return sock


if __name__ == "__main__":
    try:
        main(int(sys.argv[1]), sys.argv[2], *map(int, sys.argv[3:6]))
    except OSError as error:
        sys.exit(f"{error.strerror or error}")
