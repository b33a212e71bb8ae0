"""QEMUs and roots from elsewhere: container images as podman and docker save them, package sources, filesystems."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from guestmark.cli.do.ab import _label_paths
from guestmark.core import registry
from guestmark.core.architectures import find_host_architecture
from guestmark.core.errors import UsageError
from guestmark.core.factor import Labelled
from guestmark.foreign import qemus
from tests.framework.known import known
from tests.framework.root_images import FORMS, image_of_layers, saved, squashfs, tar

SCRIPT = b"#!/bin/sh\necho QEMU emulator version 9.9\n"
NAME = find_host_architecture().emulator.name
PATH = f"usr/bin/{NAME}"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.mark.parametrize("oci", [False, True])
def test_a_container_image_has_a_qemu(tmp_path: Path, oci: bool) -> None:
    old = tar({PATH: b"#!/bin/sh\nexit 1\n", "etc/gone": b"x", "etc/kept": b"x"})
    new = tar({PATH: SCRIPT, "etc/.wh.gone": b""})
    image = saved(tmp_path / "image.tar", [old, new], oci=oci)
    (level,) = registry.parse_settings([f"qemu=mine:image:{image}"])["qemu"]
    assert isinstance(level, Labelled)
    assert level.label == "mine"
    assert Path(level).read_bytes() == SCRIPT
    root = Path(level).parents[2]
    assert not (root / "etc/gone").exists()
    assert (root / "etc/kept").exists()
    again = registry.parse_settings([f"qemu=image:{image}"])["qemu"][0]
    assert again == str(level)  # unpacked once


@pytest.mark.parametrize(
    ("links", "files"),
    [
        ({"escape": "OUTSIDE"}, ["escape/file"]),
        ({"escape": "../../../../../../../../OUTSIDE"}, ["escape/file"]),
        ({"a": "b", "b": "OUTSIDE"}, ["a/file"]),
        ({"file": "OUTSIDE/file"}, ["file"]),
    ],
)
def test_nothing_leaves_the_directory_of_an_image(
    tmp_path: Path, links: dict[str, str], files: list[str]
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    first = tar({PATH: SCRIPT}, {name: to.replace("OUTSIDE", str(outside)) for name, to in links.items()})
    image = saved(tmp_path / "evil.tar", [first, tar(dict.fromkeys(files, b"x"))])
    (level,) = registry.parse_settings([f"qemu=image:{image}"])["qemu"]
    assert not list(outside.iterdir())
    assert list(Path(level).parents[2].rglob("file"))
    climbing = saved(tmp_path / "climbing.tar", [first, tar({"../../above": b"x"})])
    with pytest.raises(UsageError, match="points outside the image"):
        registry.parse_settings([f"qemu=image:{climbing}"])
    assert not list(tmp_path.rglob("above"))


def test_links_of_an_image_are_its_own(tmp_path: Path) -> None:
    """An absolute link means a file of the image, never one of this host; a circle ends."""
    layer = tar({"opt/qemu": SCRIPT}, {PATH: "/opt/qemu"})
    (level,) = registry.parse_settings([f"qemu=image:{saved(tmp_path / 'linked.tar', [layer])}"])["qemu"]
    assert Path(level).read_bytes() == SCRIPT
    circle = tar({}, {PATH: "other", "usr/bin/other": NAME})
    with pytest.raises(UsageError, match="form a loop"):
        registry.parse_settings([f"qemu=image:{saved(tmp_path / 'circle.tar', [circle])}"])


@pytest.mark.parametrize(
    ("layers", "said"),
    [
        ([tar({"etc/x": b""})], f"has no {NAME}"),
        ([tar({PATH: b"#!/bin/sh\necho libfoo.so.1 is missing >&2; exit 127\n"})], "libfoo.so.1 is missing"),
        ([b"nonsense"], "cannot be unpacked"),
    ],
)
def test_images_that_do_not_serve(tmp_path: Path, layers: list[bytes], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        registry.parse_settings([f"qemu=image:{saved(tmp_path / 'image.tar', layers)}"])


def test_what_is_no_image(tmp_path: Path) -> None:
    (tmp_path / "plain.tar").write_bytes(tar({"x": b""}))
    with pytest.raises(UsageError, match="not a container image"):
        registry.parse_settings([f"qemu=image:{tmp_path / 'plain.tar'}"])
    if shutil.which("podman") is None and shutil.which("docker") is None:
        with pytest.raises(UsageError, match=r"neither podman nor docker"):
            registry.parse_settings(["qemu=image:debian/qemu"])


def test_an_engine_is_asked_for_its_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for podman, which knows one image."""
    (tmp_path / "root.tar").write_bytes(tar({PATH: SCRIPT}))
    engine = tmp_path / "bin/podman"
    engine.parent.mkdir()
    engine.write_text(
        f"""#!/bin/sh
echo "$@" >>{tmp_path}/log
case "$1 $5$3" in
"image "*known*) echo sha256:0123456789abcdef0123456789 ;;
"image "*) exit 1 ;;
"create "*) echo c0ffee ;;
"export "*) cp {tmp_path}/root.tar "$3" ;;
esac
"""
    )
    engine.chmod(0o755)
    monkeypatch.setenv("PATH", f"{engine.parent}:{os.environ['PATH']}")
    (level,) = registry.parse_settings(["qemu=image:known"])["qemu"]
    assert Path(level).read_bytes() == SCRIPT
    assert "rm c0ffee" in (tmp_path / "log").read_text()
    with pytest.raises(UsageError, match="podman has no image 'other'"):
        registry.parse_settings(["qemu=image:other"])


def test_versions_that_the_sources_do_not_have() -> None:
    with pytest.raises(UsageError, match=r"the package sources have no QEMU 1:0\.1"):
        registry.parse_settings(["qemu=apt:1:0.1"])
    with pytest.raises(UsageError, match="is not a package version"):
        registry.parse_settings(["qemu=apt:$(id)"])
    assert _label_paths(("apt:1:7.2", "image:x")) == ("A:apt:1:7.2", "B:image:x")
    assert _label_paths(("old:apt:1:7.2", "new:image:x")) == ("old:apt:1:7.2", "new:image:x")


@pytest.mark.long
@pytest.mark.skipif(not qemus.list_versions(), reason="the package lists have no QEMU")
def test_a_version_of_the_sources_is_fetched(cache: Path) -> None:
    version = known(qemus.list_versions()[-1])
    (level,) = registry.parse_settings([f"qemu=old:apt:{version}"])["qemu"]
    assert str(level).startswith(str(cache))
    assert isinstance(level, Labelled)
    assert level.label == "old"


# --- root filesystems ------------------------------------------------------------------------------------------------


ROOT = {"etc/os-release": b"ID=made", "usr/bin/true": SCRIPT, "tmp/file": b""}


@pytest.mark.parametrize("make", FORMS, ids=lambda make: str(make.__name__))
def test_guests_have_what_an_image_holds(
    cache: Path, tmp_path: Path, make: Callable[[Path, Path], None]
) -> None:
    if make is squashfs and shutil.which("mksquashfs") is None:
        pytest.skip("install the package squashfs-tools")
    tree, image = tmp_path / "tree", tmp_path / "made-1.img"
    for name, content in ROOT.items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_bytes(content)
    (tree / "usr/bin/true").chmod(0o4755)
    (tree / "usr/bin/link").symlink_to("/usr/bin/true")
    os.mkfifo(tree / "etc/pipe")
    make(tree, image)
    (level,) = registry.parse_settings([f"rootfs={image}"])["rootfs"]
    assert isinstance(level, Labelled)
    assert level.label == "made-1.img"  # what tables call it
    root = Path(level)
    assert root.is_relative_to(cache)
    assert {name: (root / name).read_bytes() for name in ROOT} == ROOT
    assert (root / "usr/bin/true").stat().st_mode & 0o7777 == 0o755
    assert os.readlink(root / "usr/bin/link") == "/usr/bin/true"
    assert not (root / "etc/pipe").exists()
    assert (root / "tmp").stat().st_mode & 0o7777 == 0o1777
    assert (root / "etc/added").exists() == (make is image_of_layers)
    assert not list((cache / "guestmark/images").glob("part-*"))
    assert registry.parse_settings([f"rootfs=mine:{image}"])["rootfs"][0] == str(level)


def test_images_that_are_no_root(tmp_path: Path) -> None:
    image = tmp_path / "image"
    for content, said in (
        (b"QFI\xfb" + bytes(600), "is a whole disk"),
        (bytes(510) + b"\x55\xaa", "is a whole disk"),
        (b"nonsense" * 100, "is not a tar archive"),
        (b"hsqs" + bytes(600), "unsquashfs"),
        (tar({"x": b""}), "is not a root filesystem"),
    ):
        image.write_bytes(content)
        with pytest.raises(UsageError, match=said):
            registry.parse_settings([f"rootfs={image}"])
    with pytest.raises(UsageError, match=r"neither podman nor docker|has no image"):
        registry.parse_settings(["rootfs=image:no-such/image"])
