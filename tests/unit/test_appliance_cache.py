"""What a guest boots is made once, also when several platforms are probed side by side."""

from concurrent.futures import ThreadPoolExecutor

from guestmark.agent.binary import agent_binary
from guestmark.appliance.initramfs import ModuleList, build_initramfs
from guestmark.appliance.kernel import find_kernel


def test_side_by_side_makers_do_not_meet(tmp_path, monkeypatch):
    cached = find_kernel()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def make(_):
        kernel = find_kernel(str(cached.image))
        return kernel.elf, build_initramfs(agent_binary(), cached.modules, ModuleList(("overlay",)))

    with ThreadPoolExecutor(8) as pool:
        made = set(pool.map(make, range(8)))
    (pair,) = made
    assert {path for path in tmp_path.rglob("*") if path.is_file()} == set(pair)
