"""What a guest boots is made once, also when several platforms are probed side by side."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from guestmark.appliance.bzimage import NotABzImageError, read_release
from guestmark.appliance.initramfs import ModuleList, build_initramfs
from guestmark.appliance.kernel import find_kernel
from guestmark.appliance.modules import ModuleTree
from guestmark.appliance.paths import choose_scratch_parent
from guestmark.core.architectures import find_host_architecture
from guestmark.core.errors import GuestmarkError
from guestmark.core.own_program import find_agent_binary
from tests.framework.known import known


@pytest.mark.skipif(
    not find_host_architecture().kernel_unpacked, reason="kernels of this host are used as they are"
)
def test_side_by_side_makers_do_not_meet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cached = find_kernel()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def make(_: int) -> tuple[Path, Path]:
        kernel = find_kernel(str(cached.image))
        return known(kernel.elf), build_initramfs(
            find_agent_binary(), cached.modules, ModuleList(("overlay",))
        )

    with ThreadPoolExecutor(8) as pool:
        made = set(pool.map(make, range(8)))
    (pair,) = made
    assert {path for path in tmp_path.rglob("*") if path.is_file()} == set(pair)


def test_a_kernel_that_was_replaced_is_read_again(tmp_path: Path) -> None:
    kernel = tmp_path / "vmlinux"
    kernel.write_bytes(b"\x7fELF....Linux version 6.1.0-a (me@here) ...")
    assert [read_release(kernel), read_release(kernel)] == ["6.1.0-a", "6.1.0-a"]
    kernel.write_bytes(b"\x7fELF....Linux version 6.12.1 (me@here) ......")
    assert read_release(kernel) == "6.12.1"
    kernel.write_bytes(b"no kernel")
    with pytest.raises(NotABzImageError):
        read_release(kernel)


def test_a_module_tree_that_has_changed_is_read_again(tmp_path: Path) -> None:
    dep = tmp_path / "modules.dep"
    dep.write_text("kernel/fs/9p/9p.ko: kernel/net/9p/9pnet.ko\nkernel/net/9p/9pnet.ko:\n")
    tree = ModuleTree.read(tmp_path)
    assert tree.has_module("9pnet")
    assert ModuleTree.read(tmp_path) is tree
    dep.write_text("kernel/fs/fuse/virtiofs.ko:\n")
    assert not ModuleTree.read(tmp_path).has_module("9pnet")
    assert ModuleTree.read(tmp_path).has_module("virtiofs")


def test_a_missing_directory_for_temporary_files_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "none"))
    with pytest.raises(GuestmarkError, match=r"there is no directory .*/none for temporary files"):
        choose_scratch_parent()
