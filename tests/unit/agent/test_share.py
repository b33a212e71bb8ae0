"""A directory served by 9p: a client of our own asks for what kernels ask for, and for what nobody may have."""

import errno
import os
import socket
import stat
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from guestmark.core.own_program import find_agent_binary

VERSION, ATTACH, WALK, CLUNK, OPEN, READ, LIST, LINK, ATTRIBUTES = 100, 104, 110, 120, 12, 116, 40, 22, 24
ERROR = 7
NOBODY = 0xFFFFFFFF


def text(value: bytes) -> bytes:
    return struct.pack("<H", len(value)) + value


class Client:
    """A connection to a server of one directory; the root is number 0."""

    def __init__(self, directory: Path) -> None:
        self.stream, theirs = socket.socketpair()
        self.stream.settimeout(10)
        self.server = subprocess.Popen(
            [str(find_agent_binary()), "share", str(directory)], stdin=theirs.fileno(), stdout=theirs.fileno()
        )
        theirs.close()
        self.ask(VERSION, struct.pack("<I", 8192) + text(b"9P2000.L"))
        self.ask(ATTACH, struct.pack("<II", 0, NOBODY) + text(b"") + text(b"") + struct.pack("<I", 0))

    def send(self, kind: int, body: bytes) -> tuple[int, bytes]:
        self.stream.sendall(struct.pack("<IBH", 7 + len(body), kind, 1) + body)
        size, answered, tag = struct.unpack("<IBH", self.take(7))
        assert tag == 1
        return answered, self.take(size - 7)

    def ask(self, kind: int, body: bytes) -> bytes:
        """The body of an answer. Raises `OSError` for the server's own."""
        answered, found = self.send(kind, body)
        if answered == ERROR:
            raise OSError(*struct.unpack("<I", found), "served")
        assert answered == kind + 1
        return found

    def take(self, count: int) -> bytes:
        got = b""
        while len(got) < count:
            more = self.stream.recv(count - len(got))
            assert more, "the server has gone"
            got += more
        return got

    def walk(self, *names: str, new: int = 1) -> int:
        """How many of the names were found."""
        steps = b"".join(text(os.fsencode(name)) for name in names)
        return int(
            struct.unpack_from("<H", self.ask(WALK, struct.pack("<IIH", 0, new, len(names)) + steps))[0]
        )

    def content(self, *names: str, count: int = 4096) -> bytes:
        assert self.walk(*names) == len(names)
        self.ask(OPEN, struct.pack("<II", 1, os.O_RDONLY))
        found = b""
        while more := self.ask(READ, struct.pack("<IQI", 1, len(found), count))[4:]:
            found += more
        self.ask(CLUNK, struct.pack("<I", 1))
        return found

    def names(self, *of: str, count: int = 200) -> dict[str, int]:
        """What a directory holds, with the kinds of the entries."""
        assert self.walk(*of) == len(of)
        self.ask(OPEN, struct.pack("<II", 1, os.O_RDONLY | os.O_DIRECTORY))
        found, offset = {}, 0
        while entries := self.ask(LIST, struct.pack("<IQI", 1, offset, count))[4:]:
            while entries:
                _, _, _, offset, kind, size = struct.unpack_from("<BIQQBH", entries)
                found[os.fsdecode(entries[24 : 24 + size])] = kind
                entries = entries[24 + size :]
        self.ask(CLUNK, struct.pack("<I", 1))
        return found

    def close(self) -> int:
        self.stream.close()
        return self.server.wait(10)


@pytest.fixture(name="served")
def _served(tmp_path: Path) -> Iterator[tuple[Path, Client]]:
    root = tmp_path / "root"
    (root / "directory/deep").mkdir(parents=True)
    (root / "file").write_bytes(bytes(range(256)) * 100)
    (root / "directory/café").write_text("ü")
    (root / "link").symlink_to("/etc/passwd")
    (root / "away").symlink_to("/etc")
    os.mkfifo(root / "pipe")
    (tmp_path / "secret").write_text("secret")
    client = Client(root)
    yield root, client
    client.close()
    client.server.kill()


def test_what_is_there_is_served(served: tuple[Path, Client]) -> None:
    root, client = served
    assert client.content("file") == (root / "file").read_bytes()
    assert client.content("directory", "café") == "ü".encode()
    kinds = {".": 4, "..": 4, "file": 8, "directory": 4, "link": 10, "away": 10, "pipe": 1}
    assert client.names() == kinds
    client.walk("link")
    assert client.ask(LINK, struct.pack("<I", 1))[2:] == b"/etc/passwd"
    client.walk("file")
    _, kind, _, _, mode, user, _, links, _, size = struct.unpack_from(
        "<QBIQIIIQQQ", client.ask(ATTRIBUTES, struct.pack("<IQ", 1, 0x7FF))
    )
    real = (root / "file").stat()
    assert (kind, mode, user, links, size) == (0, real.st_mode, real.st_uid, real.st_nlink, real.st_size)
    assert client.close() == 0


def test_a_directory_with_many_entries_is_told_in_parts(served: tuple[Path, Client]) -> None:
    root, client = served
    many = {f"{number:060}" for number in range(3000)}
    for name in many:
        (root / "directory/deep" / name).touch()
    assert set(client.names("directory", "deep", count=8168)) == many | {".", ".."}


def test_a_walk_says_how_far_it_came(served: tuple[Path, Client]) -> None:
    _, client = served
    assert client.walk("directory", "deep", "nothing", "more") == 2
    with pytest.raises(OSError, match="served") as caught:
        client.ask(ATTRIBUTES, struct.pack("<IQ", 1, 0))
    assert caught.value.errno == errno.EBADF
    with pytest.raises(OSError, match="served") as caught:
        client.walk("nothing")
    assert caught.value.errno == errno.ENOENT


@pytest.mark.parametrize(
    ("names", "code"),
    [
        (("..", "secret"), None),
        (("../secret",), errno.EINVAL),
        (("directory/deep",), errno.EINVAL),
        (("away", "passwd"), None),
        (("file", "x"), None),
        (("",), errno.EINVAL),
    ],
)
def test_nothing_outside_is_reached(
    served: tuple[Path, Client], names: tuple[str, ...], code: int | None
) -> None:
    _, client = served
    if code is None:
        assert client.walk(*names) < len(names)
        return
    with pytest.raises(OSError, match="served") as caught:
        client.walk(*names)
    assert caught.value.errno == code


def test_the_root_is_its_own_parent(served: tuple[Path, Client]) -> None:
    _, client = served
    assert client.content("..", "..", "directory", "..", "file")


@pytest.mark.parametrize("flags", [os.O_WRONLY, os.O_RDWR, os.O_RDONLY | os.O_TRUNC])
def test_nothing_is_opened_to_be_changed(served: tuple[Path, Client], flags: int) -> None:
    root, client = served
    client.walk("file")
    with pytest.raises(OSError, match="served") as caught:
        client.ask(OPEN, struct.pack("<II", 1, flags))
    assert caught.value.errno == errno.EROFS
    assert (root / "file").stat().st_size == 25600


# lcreate, symlink, mknod, rename, setattr, link, mkdir, renameat, unlinkat, write, remove, and what is no request.
@pytest.mark.parametrize("kind", [14, 16, 18, 20, 26, 70, 72, 74, 76, 118, 122, 0, 255])
def test_nothing_is_made_or_changed(served: tuple[Path, Client], kind: int) -> None:
    root, client = served
    before = sorted(root.rglob("*"))
    answered, found = client.send(kind, struct.pack("<I", 0) + bytes(60))
    assert (answered, found) == (ERROR, struct.pack("<I", errno.EROFS))
    assert sorted(root.rglob("*")) == before


def test_a_pipe_is_the_clients_own_affair(served: tuple[Path, Client]) -> None:
    root, client = served
    assert stat.S_ISFIFO((root / "pipe").stat().st_mode)
    client.walk("pipe")
    with pytest.raises(OSError, match="served") as caught:
        client.ask(OPEN, struct.pack("<II", 1, os.O_RDONLY))
    assert caught.value.errno == errno.ENXIO


@given(st.lists(st.tuples(st.integers(0, 255), st.binary(max_size=80)), max_size=20))
@settings(max_examples=60, deadline=None)
def test_whatever_is_asked_is_answered(requests: list[tuple[int, bytes]]) -> None:
    client = Client(Path("/usr/share/doc"))
    for kind, body in requests:
        client.send(kind, body)
    assert client.close() == 0


@pytest.mark.parametrize("size", [0, 6, (1 << 20) + 1, NOBODY])
def test_a_message_of_an_impossible_size_ends_it(size: int, tmp_path: Path) -> None:
    done = subprocess.run(
        [str(find_agent_binary()), "share", str(tmp_path)],
        input=struct.pack("<IBH", size, VERSION, 1),
        capture_output=True,
        check=False,
        timeout=10,
    )
    assert (done.returncode, done.stderr.count(b"\n")) == (125, 1)
    assert f"a message of {size} bytes".encode() in done.stderr
