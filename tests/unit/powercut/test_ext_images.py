"""Two images of ext2 to ext4 are equal exactly if they have the same files, whatever lies in free blocks."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from guestmark.powercut.ext_image import digest_image
from guestmark.powercut.recovery import ExtRecovery

KINDS = {
    "ext2": ["-t", "ext2"],
    "ext3": ["-t", "ext3"],
    "ext4": ["-t", "ext4"],
    "blocks of 4096": ["-t", "ext4", "-b", "4096"],
    "no 64 bits": ["-t", "ext4", "-O", "^64bit"],
    "no checksums": ["-t", "ext4", "-O", "^metadata_csum"],
}


@pytest.fixture(params=KINDS, name="made")
def made_image(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    folder = tmp_path / "files"
    (folder / "a").mkdir(parents=True)
    (folder / "a" / "file").write_bytes(b"content" * 3000)
    (folder / "zeroes").write_bytes(bytes(20_000))
    image = tmp_path / "image"
    options = ["-q", "-F", *KINDS[request.param], "-d", str(folder)]
    subprocess.run(["mke2fs", *options, image, "64M"], check=True, capture_output=True)
    return image


def ask(image: Path, request: str, *, write: bool = False) -> str:
    command = ["debugfs", *(["-w"] if write else []), "-R", request, str(image)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return done.stdout


def block_size(image: Path) -> int:
    with image.open("rb") as file:
        file.seek(1048)
        return 1024 << int.from_bytes(file.read(4), "little")


def overwrite(image: Path, block: int) -> None:
    size = block_size(image)
    with image.open("r+b") as file:
        file.seek(block * size)
        file.write(b"\xa5" * size)


def test_free_blocks_and_times_make_no_difference(made: Path) -> None:
    before = digest_image(made)
    assert before is not None
    overwrite(made, int(ask(made, "ffb").split()[-1]))
    assert digest_image(made) == before
    # A check with nothing to mend writes the time of it.
    os.utime(made)
    assert not ExtRecovery().replay_journal(made).repairs
    assert digest_image(made) == before


def test_old_blocks_of_a_journal_make_no_difference(made: Path) -> None:
    if "EXTENTS" not in ask(made, "stat <8>"):
        pytest.skip("it has no journal, or one that is mapped in the old way")
    before = digest_image(made)
    overwrite(made, int(ask(made, "bmap <8> 50")))
    assert digest_image(made) == before


CHANGES: dict[str, Callable[[Path], object]] = {
    "content": lambda image: overwrite(image, int(ask(image, "bmap /a/file 3"))),
    "zeroes": lambda image: overwrite(image, int(ask(image, "bmap /zeroes 1") or 0) or 1),
    "name": lambda image: ask(image, "link /a/file /a/other", write=True),
    "removed": lambda image: ask(image, "unlink /a/file", write=True),
    "mode": lambda image: ask(image, "set_inode_field /a/file mode 0100600", write=True),
    "attribute": lambda image: ask(image, "ea_set /a/file user.key value", write=True),
    "directory": lambda image: ask(image, "mkdir /new", write=True),
    "size": lambda image: ask(image, "set_inode_field /a/file size 17", write=True),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_a_program_sees_makes_a_difference(made: Path, change: str) -> None:
    before = digest_image(made)
    CHANGES[change](made)
    assert digest_image(made) != before


def test_what_is_not_known_has_no_digest(tmp_path: Path) -> None:
    image = tmp_path / "image"
    for options in (["-O", "meta_bg,^resize_inode"], ["-O", "bigalloc"]):
        subprocess.run(
            ["mke2fs", "-q", "-F", "-t", "ext4", *options, image, "64M"], check=True, capture_output=True
        )
        assert digest_image(image) is None
    image.write_bytes(bytes(4096))
    assert digest_image(image) is None
