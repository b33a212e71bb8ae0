"""A kernel package unpacked into the cache, on systems with Debian's programs and without them."""

import shutil
import struct
import subprocess
from pathlib import Path

import pytest

from guestmark.core.architectures import find_host_architecture
from tests.framework.command_line import CommandLine, Result

RELEASE = "6.1.0-test"


def image() -> bytes:
    """The head of a bzImage, or of another architecture's image."""
    data = bytearray(0x1000)
    row = find_host_architecture()
    place, mark = row.kernel_marks[0]
    data[place : place + len(mark)] = mark
    if row.kernel_unpacked:
        struct.pack_into("<H", data, 0x20E, 0x200)
        data[0x400 : 0x400 + len(RELEASE)] = RELEASE.encode()
    return bytes(data)


def package(
    folder: Path, *, packed: str = "xz", kernel: bytes | None = None, module: str = "net/9p/9pnet_virtio"
) -> Path:
    tree = folder / "tree"
    files = {
        f"boot/vmlinuz-{RELEASE}": image() if kernel is None else kernel,
        f"boot/config-{RELEASE}": b"",
        f"usr/lib/modules/{RELEASE}/kernel/{module}.ko": b"module",
        f"usr/lib/modules/{RELEASE}/kernel/sound/none.ko": b"not wanted",
        "DEBIAN/control": b"Package: linux-test\nVersion: 1\nArchitecture: all\nMaintainer: no\nDescription: no\n",
    }
    for name, content in files.items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_bytes(content)
    made = folder / f"linux-image-{RELEASE}.deb"
    subprocess.run(["dpkg-deb", f"-Z{packed}", "--build", tree, made], check=True, capture_output=True)
    return made


@pytest.fixture(autouse=True)
def own_cache(guestmark: CommandLine, tmp_path: Path) -> None:
    """Tests share the user's kernels otherwise."""
    if shutil.which("dpkg-deb") is None:
        pytest.skip("dpkg-deb, which makes the packages of these tests, is not installed")
    (tmp_path / "own").mkdir()
    guestmark.environment["XDG_CACHE_HOME"] = str(tmp_path / "own")


@pytest.fixture
def elsewhere(guestmark: CommandLine, tmp_path: Path) -> CommandLine:
    """The command line on a system with none of Debian's programs, but zstd."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "zstd").symlink_to(shutil.which("zstd") or "zstd")
    guestmark.environment |= {"PATH": str(programs)}
    return guestmark


def made(line: CommandLine, *files: object) -> Result:
    return line("prepare", "kernel", *files)


@pytest.mark.parametrize("packed", ["xz", "gzip", "none", "zstd"])
def test_a_package_is_unpacked_without_debians_programs(
    elsewhere: CommandLine, tmp_path: Path, packed: str
) -> None:
    if packed == "zstd" and shutil.which("zstd") is None:
        pytest.skip("zstd is not installed")
    done = made(elsewhere, package(tmp_path, packed=packed))
    assert done.status == 0, done.stderr
    found = Path(done.stdout.strip())
    assert found.read_bytes() == image()
    assert found.parent.name == RELEASE
    assert [file.stem for file in found.parent.rglob("*.ko")] == ["9pnet_virtio"]
    assert done.stderr == f"guestmark: QEMU's guests now boot {RELEASE}\n"


def test_another_package_of_the_same_release_takes_its_place(guestmark: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "bare").mkdir()
    for file in (package(tmp_path / "bare", module="net/core/none"), package(tmp_path)):
        done = made(guestmark, file)
    assert (done.status, done.stderr) == (0, f"guestmark: QEMU's guests now boot {RELEASE}\n")


def test_what_is_no_kernel_for_guests_is_refused_in_a_line(guestmark: CommandLine, tmp_path: Path) -> None:
    whole = package(tmp_path)
    cut = tmp_path / "cut.deb"
    cut.write_bytes(whole.read_bytes()[:-200])
    (tmp_path / "zst").mkdir()
    damaged = package(tmp_path / "zst", packed="zstd")
    content = bytearray(damaged.read_bytes())
    content[-300] ^= 255
    damaged.write_bytes(content)
    text = tmp_path / "text.deb"
    text.write_text("no package\n")
    (tmp_path / "other").mkdir()
    other = package(tmp_path / "other", kernel=b"MZ" + bytes(0x1000))
    (tmp_path / "bare").mkdir()
    bare = package(tmp_path / "bare", module="net/core/none")
    for file, said in {
        tmp_path / "none.deb": "there is no package",
        tmp_path: "cannot be read as a Debian package",
        text: "cannot be read as a Debian package: it is not an ar archive",
        cut: "cannot be read as a Debian package: it is truncated",
        damaged: "cannot be read as a Debian package",
        other: f"the kernel in {other.name} is not for",
        bare: "neither 9p nor virtiofs",
    }.items():
        done = made(guestmark, file)
        assert done.status != 0
        error, hint, *more = done.stderr.splitlines()
        assert said in error
        assert (hint[:2], more, done.stdout) == ("  ", [], "")


def test_other_options_are_refused(guestmark: CommandLine) -> None:
    done = made(guestmark, "--save", "x.tar")
    assert done.status == 2
    assert "takes only package files" in done.stderr
