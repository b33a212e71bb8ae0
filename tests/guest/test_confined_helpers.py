"""Servers, guestfish and the tools that read images are confined on this host too: tried by what they must refuse."""

import contextlib
import os
import shutil
import tempfile
from pathlib import Path

import pymysql
import pytest
from pg8000 import native

from guestmark.core.errors import MachineError
from guestmark.disks import daemon
from guestmark.platforms import libguestfs
from guestmark.workloads.guestfs import guestfish
from guestmark.workloads.guestfs.guestfish import Mark
from guestmark.workloads.oltp.databases.server import Server
from tests.framework.databases import SERVERS, bare_server
from tests.framework.known import known
from tests.framework.netboot import prepared


def outside() -> Path:
    """A name in a directory that anybody may write to."""
    return Path("/var/tmp", f"guestmark-escape-{os.getpid()}")


@pytest.mark.parametrize("name", SERVERS)
def test_a_server_changes_its_own_files_and_no_others(name: str) -> None:
    with bare_server(name) as server:
        found = known(server.confined)
        assert found.protects_files
        assert found.no_new_privileges
        assert found.capabilities == 0
        server.count_flushes()
        assert not outside().exists()
        assert "Read-only" in said_when_told(server, outside()), "the server did not even try"
        assert not outside().exists()
        server.stop_server()


def said_when_told(server: Server, file: Path) -> str:
    """What the server says when its administrator has it write a file of this host."""
    socket = server.database.locate_socket(server.data)
    if server.database.name == "mariadb":
        with (
            contextlib.closing(pymysql.connect(unix_socket=socket, user="root")) as session,
            session.cursor() as cursor,
            pytest.raises(pymysql.MySQLError) as raised,
        ):
            cursor.execute(f"SELECT 'x' INTO OUTFILE '{file}'")
    else:
        with (
            contextlib.closing(
                native.Connection("sysbench", database="postgres", unix_sock=socket)
            ) as session,
            pytest.raises(native.Error) as raised,
        ):
            session.run(f"COPY (SELECT 1) TO '{file}'")
    return str(raised.value)


@pytest.mark.long
def test_guestfish_changes_the_images_it_is_given_and_nothing_else(tmp_path: Path) -> None:
    """A command after `!` is run by guestfish itself, as what had taken it over would run it."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:  # in /tmp it has what it writes to itself
        try_with_guestfish(tmp_path / "given.raw", Path(folder, "other.raw"))


def try_with_guestfish(given: Path, other: Path) -> None:
    """Writes to the image that is given, and tries to write elsewhere."""
    for image in (given, other):
        image.write_bytes(bytes(1 << 20))
    appliance = Path(libguestfs.prepare("tcg")["LIBGUESTFS_CACHEDIR"])
    tries = [f"!(echo x >{path}) 2>/dev/null && echo could {path} || true" for path in (
        outside(), other, "/etc/guestmark-escape", appliance / "made", appliance / f".guestfs-{os.getuid()}/made",
        "/proc/sys/vm/swappiness",
    )]  # fmt: skip
    script: list[str | Mark] = [f"add-drive {given} format:raw", "run", Mark("launched"), *tries]
    script += ["!echo x > /tmp/guestmark-escape && echo wrote there"]
    script += ["pwrite-device /dev/sda hello 0", Mark("done"), "shutdown"]
    timeline = guestfish.run("tcg", script, 120, writable=[given])
    found = known(timeline.confined)
    assert found.protects_files
    assert found.no_new_privileges
    said = timeline.console.read_text()
    assert "could " not in said
    assert "wrote there" in said, "libguestfs's own sockets need a /tmp"
    assert not Path("/tmp/guestmark-escape").exists()
    assert given.read_bytes()[:5] == b"hello"
    assert other.read_bytes() == bytes(1 << 20)


@pytest.mark.long
@pytest.mark.parametrize("network", ["user", "passt"])
def test_what_a_booting_machine_talks_to_is_confined(network: str) -> None:
    if network == "passt" and (shutil.which("passt") is None or not Path("/usr/lib/ipxe/ipxe.lkrn").exists()):
        pytest.skip("passt and ipxe are not installed")
    with prepared(network=network) as (_, machine):
        confined = known(machine.attest().confined)
        assert confined.protects_files
        helpers = known(confined.helpers)
        assert set(helpers) == {"the HTTP server"} | ({"passt"} if network == "passt" else set())
        assert all(helper.protects_files and helper.no_new_privileges for helper in helpers.values())


def test_a_tool_that_reads_an_image_writes_nothing(tmp_path: Path) -> None:
    """What they read, guests have written."""
    image = tmp_path / "image"
    daemon.run_program("qemu-img", "create", "-f", "raw", str(image), "8M", writable=[tmp_path])
    daemon.run_program("mke2fs", "-q", "-t", "ext4", str(image), writable=[tmp_path])
    before = image.read_bytes()
    with pytest.raises(MachineError):
        daemon.run_program("mke2fs", "-q", "-F", "-t", "ext2", str(image))
    daemon.run_program("debugfs", "-w", "-R", "mkdir /made", str(image), ok=range(256))
    assert image.read_bytes() == before
