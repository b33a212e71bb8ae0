"""Python's frames are made from those of Rust, and a change of either alone is noticed."""

import shutil
import sys
from pathlib import Path

import msgspec
import pytest

from guestmark.agent import frames, wire
from tools import wire as tool


@pytest.fixture
def crate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the crate's sources, which the tool reads instead."""
    copy = tmp_path / "src"
    shutil.copytree(tool.CRATE, copy)
    monkeypatch.setattr(tool, "CRATE", copy)
    monkeypatch.setattr(sys, "argv", ["wire.py", "--check"])
    return copy


@pytest.mark.usefixtures("crate")
def test_both_are_in_step() -> None:
    assert tool.main() == 0


@pytest.mark.parametrize(
    ("file", "here", "there"),
    [
        ("lib.rs", "pub const PROTOCOL: u32 = 1;", "pub const PROTOCOL: u32 = 2;"),
        (
            "lib.rs",
            "    pub oom_killed: bool,",
            "    pub oom_killed: bool,\n    /// More.\n    pub more: Option<u64>,",
        ),
        ("lib.rs", "    BadCwd,", "    BadDirectory,"),
        ("lib.rs", "    Sync,", "    SyncAll,"),
        (
            "lib.rs",
            "/// Reads the metadata of a file, following symbolic links: [`Stat`].",
            "/// Metadata: [`Statfs`].",
        ),
        ("files.rs", "pub mtime_ns: i64", "pub mtime_s: f64"),
        ("files.rs", "    #[serde(default)]\n    pub lazy: bool", "    pub lazy: bool"),
    ],
)
def test_a_change_of_the_crate_alone_is_noticed(crate: Path, file: str, here: str, there: str) -> None:
    source = (crate / file).read_text()
    assert here in source
    (crate / file).write_text(source.replace(here, there, 1))
    assert tool.main() == 1


def test_a_change_of_the_mix_alone_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mix = tmp_path / "syscalls"
    shutil.copytree(tool.MIX, mix)
    monkeypatch.setattr(tool, "MIX", mix)
    assert tool.render_mix().endswith("'exec')")
    (mix / "mix.rs").write_text((mix / "mix.rs").read_text().replace('("exec", ||', '("spawn", ||'))
    assert tool.render_mix().endswith("'spawn')")


def test_what_the_tool_does_not_understand_is_an_error(crate: Path) -> None:
    source = (crate / "lib.rs").read_text()
    (crate / "lib.rs").write_text(
        source.replace("    pub uid: u32,", "    pub uid: u32, pub other: u32,\n    odd!(),", 1)
    )
    with pytest.raises(SystemExit, match="does not understand"):
        tool.main()


def test_a_request_is_what_serde_reads() -> None:
    frame = frames.frame_request(3, wire.UMOUNT, wire.Umount(target=b"/mnt", lazy=True))
    assert msgspec.msgpack.decode(frame[4:]) == {
        "id": 3,
        "call": {"umount": {"target": b"/mnt", "lazy": True}},
    }
    assert msgspec.msgpack.decode(frames.frame_request(4, wire.SYNC, None)[4:]) == {"id": 4, "call": "sync"}
    assert msgspec.msgpack.decode(frames.frame_request(5, wire.DATA, b"x")[4:]) == {
        "id": 5,
        "call": {"data": b"x"},
    }
