"""UEFI's own HTTP boot, without iPXE: the firmware's requests, captured at the card, and what is said of them."""

from __future__ import annotations

import contextlib
import http.server
import io
import os
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from guestmark.appliance.kernel import find_kernel
from guestmark.capture.binary import analyse_file
from guestmark.capture.startup import find_startup
from guestmark.capture.table import render_trace
from guestmark.core.architectures import X86_64
from guestmark.platforms.qemu.boots import rank_kernel
from guestmark.platforms.qemu.firmware import find_uefi
from guestmark.workloads.netboot import network
from guestmark.workloads.netboot.dhcp import DhcpServer, Lease
from guestmark.workloads.netboot.network import get_bound_port
from tests.framework.known import known
from tests.framework.processes import wait_until

FILE = "vmlinuz.efi"  # the firmware judges a file by its name


class _Files(http.server.SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


@contextlib.contextmanager
def serving(folder: Path, listening: socket.socket, dhcp: socket.socket) -> Iterator[str]:
    """A server of a folder's files and one of addresses; gives the file's URL."""

    def handler(*given: object) -> _Files:
        return _Files(*given, directory=str(folder))  # type: ignore[arg-type]

    server = http.server.ThreadingHTTPServer(("", 0), handler, bind_and_activate=False)
    server.socket.close()
    server.socket = listening
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://{network.SERVER}:{get_bound_port(listening)}/{FILE}"
    with DhcpServer(dhcp, Lease(network.SERVER, network.GUEST, network.PREFIX, url)):
        try:
            yield url
        finally:
            server.shutdown()


def firmware(scratch: Path, tap_fd: int, capture: Path) -> list[str]:
    """QEMU with OVMF and a card without a ROM, which tries HTTP at once instead of PXE."""
    code, template = find_uefi(X86_64)
    variables = scratch / "variables.fd"
    shutil.copyfile(template, variables)
    # HTTP boot needs random numbers for its ports and transactions.
    return [
        "qemu-system-x86_64", "-nodefaults", "-no-user-config", "-display", "none", "-machine", "q35",
        "-accel", "tcg", "-m", "512M", "-serial", f"file:{scratch}/serial", "-device", "virtio-rng-pci",
        "-drive", f"if=pflash,unit=0,format=raw,readonly=on,file={code}",
        "-drive", f"if=pflash,unit=1,format=raw,file={variables}",
        "-fw_cfg", "name=opt/org.tianocore/IPv4PXESupport,string=n",
        "-fw_cfg", "name=opt/org.tianocore/IPv6PXESupport,string=n",
        "-netdev", f"tap,id=net,fd={tap_fd}", "-device", "virtio-net-pci,netdev=net,romfile=,bootindex=0",
        "-object", f"filter-dump,id=dump,netdev=net,file={capture}",
    ]  # fmt: skip


@pytest.mark.long
def test_the_firmware_fetches_its_file_and_the_capture_says_how(tmp_path: Path) -> None:
    kernel = find_kernel(rank=rank_kernel).image
    shutil.copyfile(kernel, tmp_path / FILE)
    capture = tmp_path / "boot.pcap"
    fds = network.make_tap(0)
    with contextlib.ExitStack() as stack:
        for fd in fds[2:4] + fds[5:]:
            os.close(fd)
        stack.callback(os.close, fds[0])
        dhcp, data = (stack.enter_context(socket.socket(fileno=fd)) for fd in (fds[1], fds[4]))
        stack.enter_context(serving(tmp_path, data, dhcp))
        machine = subprocess.Popen(
            firmware(tmp_path, fds[0], capture), pass_fds=(fds[0],), stdin=subprocess.DEVNULL
        )
        try:
            size = kernel.stat().st_size
            assert wait_until(lambda: capture.exists() and capture.stat().st_size > size, 150), (
                tmp_path / "serial"
            ).read_text(errors="replace")[-2000:]
            assert wait_until(lambda: fetched(capture, size), 60)
        finally:
            machine.kill()
            machine.wait(10)
    trace = analyse_file(capture)
    (lease,) = [exchange for exchange in trace.exchanges if exchange.protocol == "dhcp" and exchange.server]
    assert [message.kind for message in lease.messages][-4:] == ["discover", "offer", "request", "ack"]
    startup = known(find_startup(trace))
    assert startup.bytes >= size
    assert startup.fetching_s > 0
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(render_trace(trace, "connection", named=False, width=200))
    said = console.export_text()
    assert "From the first DHCP message: address after" in said
    assert network.SERVER in said


def fetched(capture: Path, size: int) -> bool:
    """Some connection of the server brought the whole file."""
    trace = analyse_file(capture)
    return any(connection.server.unique_bytes >= size for connection in trace.connections)
