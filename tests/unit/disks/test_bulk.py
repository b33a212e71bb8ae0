"""The agent's bulk calls on real files of this host: content, direct I/O, refusals."""

import contextlib
import errno
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from guestmark.agent.binary import start_host_agent
from guestmark.agent.client import Agent, CallError
from guestmark.agent.wire import Pattern
from guestmark.workloads.disk.copying import choose_largest_block
from tests.framework.disk_files import flip_bit, small_mount

MB = 1 << 20


@pytest.fixture(scope="module")
def agent() -> Iterator[Agent]:
    _, transport = start_host_agent()
    with Agent(transport) as started:
        yield started


@pytest.fixture(params=["disk", "memory"])
def directory(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A directory on a disk's filesystem, and one in memory, where Linux has direct I/O from 6.6 on."""
    if request.param == "disk":
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(prefix="guestmark-test-", dir="/dev/shm") as name:
        asked = request.node.callspec.params
        if (asked.get("direct") or asked.get("how", {}).get("direct")) and not has_direct(Path(name)):
            pytest.skip("this kernel has no direct I/O in memory")
        yield Path(name)


def has_direct(directory: Path) -> bool:
    try:
        os.close(os.open(directory / "direct", os.O_CREAT | os.O_WRONLY | os.O_DIRECT))
    except OSError:
        return False
    return True


def every_way() -> Iterator[dict[str, Any]]:
    for direct in (False, True):
        for block in (4096, MB, 3 * MB):
            for in_flight in (1, 5):
                yield {"direct": direct, "block_size": block, "in_flight": in_flight}


WAYS = list(every_way())


@pytest.mark.parametrize("how", WAYS, ids=str)
@pytest.mark.parametrize("preallocate", [False, True])
@pytest.mark.parametrize("size", [0, 1, 4095, 4097, 5 * MB + 512])
def test_a_copy_is_the_same_bytes(
    agent: Agent, directory: Path, how: dict[str, Any], preallocate: bool, size: int
) -> None:
    if how["block_size"] == 4096 and size > MB:
        size = 40_000
    source, copy = directory / "source", directory / "copy"
    source.write_bytes(os.urandom(size))
    copy.write_bytes(b"longer than what replaces it" * 1000)
    moved = agent.copy(str(source), str(copy), preallocate=preallocate, timeout_s=30, **how)
    assert copy.read_bytes() == source.read_bytes()
    assert (moved.bytes, moved.direct) == (size, how["direct"])
    assert 0 <= moved.flush_s <= moved.guest_wall_s
    assert moved.wall_s == pytest.approx(moved.guest_wall_s, abs=1e-6)  # one clock


def test_a_part_of_a_file_is_copied(agent: Agent, directory: Path) -> None:
    (directory / "source").write_bytes(bytes(range(256)) * 64)
    agent.copy(str(directory / "source"), str(directory / "copy"), length=4096, timeout_s=30)
    assert (directory / "copy").read_bytes() == bytes(range(256)) * 16


@pytest.mark.parametrize("direct", [False, True])
def test_a_source_that_is_too_short_is_an_error(agent: Agent, directory: Path, direct: bool) -> None:
    (directory / "source").write_bytes(b"x" * 4096)
    with pytest.raises(CallError, match="is too short: it has 4096 of the 8192 bytes requested"):
        agent.copy(str(directory / "source"), str(directory / "c"), length=8192, direct=direct, timeout_s=30)


@pytest.mark.parametrize("how", WAYS, ids=str)
@pytest.mark.parametrize("pattern", list(Pattern))
def test_a_fill_has_the_digest_of_its_pattern(
    agent: Agent, directory: Path, how: dict[str, Any], pattern: Pattern
) -> None:
    size = 300_000 if how["block_size"] == 4096 else 4 * MB + 12345
    path = directory / "filled"
    agent.fill(str(path), size, pattern, timeout_s=30, **how)
    found = agent.checksum(str(path), timeout_s=30)
    assert found == agent.compute_pattern_checksum(pattern, size)
    assert found.size == size == path.stat().st_size
    if pattern is not Pattern.RANDOM:
        value = b"\0" if pattern is Pattern.ZERO else b"\1"
        assert path.read_bytes() == value * size


def test_one_wrong_bit_changes_the_digest(agent: Agent, directory: Path) -> None:
    path = directory / "filled"
    agent.fill(str(path), MB, Pattern.RANDOM, timeout_s=30)
    before = agent.checksum(str(path), timeout_s=30)
    flip_bit(path, 777_777, 4)
    assert agent.checksum(str(path), timeout_s=30) != before


def test_the_digest_is_the_published_one(agent: Agent, tmp_path: Path) -> None:
    """XXH3-128 of nothing and of one byte, as the reference implementation gives them."""
    (tmp_path / "empty").touch()
    assert agent.checksum(str(tmp_path / "empty"), timeout_s=30).xxh3 == "99aa06d3014798d86001c324468d497f"


@pytest.mark.parametrize("flush", [False, True])
def test_a_stream_becomes_a_file(agent: Agent, directory: Path, flush: bool) -> None:
    parts = [os.urandom(size) for size in (1, MB, 3 * MB + 1, 0, 70_000)]
    path = directory / "streamed"
    moved = agent.write_stream(str(path), iter(parts), flush=flush, timeout_s=30)
    assert path.read_bytes() == b"".join(parts)
    assert moved.bytes == path.stat().st_size
    assert (moved.flush_s > 0.0) is flush or moved.flush_s < 1e-3


def test_an_empty_stream_becomes_an_empty_file(agent: Agent, directory: Path) -> None:
    agent.write_stream(str(directory / "nothing"), b"", timeout_s=30)
    assert (directory / "nothing").read_bytes() == b""


def test_reading_back_counts(agent: Agent, directory: Path) -> None:
    (directory / "file").write_bytes(b"x" * (2 * MB + 5))
    for how in WAYS if has_direct(directory) else (how for how in WAYS if not how["direct"]):
        assert agent.read_back(str(directory / "file"), timeout_s=30, **how).bytes == 2 * MB + 5


def test_flush_and_what_cannot_be_flushed(agent: Agent, directory: Path) -> None:
    (directory / "file").write_bytes(b"x")
    assert agent.flush(str(directory / "file")).fsync_ns >= 0
    assert agent.flush(str(directory)).syncfs_ns >= 0
    with pytest.raises(CallError) as caught:
        agent.flush(str(directory / "missing"))
    assert caught.value.errno == errno.ENOENT


def test_what_is_no_file_or_disk_is_refused(agent: Agent, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for source in (tmp_path, tmp_path / "pipe", "/dev/zero"):
        with pytest.raises(CallError, match="neither a file nor a disk"):
            agent.copy(str(source), str(tmp_path / "copy"), timeout_s=30)


def test_nonsense_is_refused_before_anything_is_sent(agent: Agent) -> None:
    ways: list[dict[str, Any]] = [{"block_size": 1}, {"direct": True, "block_size": 5000}, {"in_flight": 0}]
    for how in ways:
        with pytest.raises(ValueError, match="must be"):
            agent.copy("/etc/hostname", "/nowhere", timeout_s=5, **how)


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """Mounts something small; gone afterwards."""
    with contextlib.ExitStack() as stack:
        yield lambda kind, options="defaults": stack.enter_context(
            small_mount(tmp_path / kind, kind, options)
        )


def test_direct_io_that_is_refused_is_an_error_on_either_side(
    agent: Agent, mounted: Callable[..., Path], tmp_path: Path
) -> None:
    without = mounted("ramfs")
    (without / "source").write_bytes(b"x" * 8192)
    (tmp_path / "source").write_bytes(b"x" * 8192)
    for source, copy in ((without / "source", tmp_path / "copy"), (tmp_path / "source", without / "copy")):
        refused = source if source.parent == without else copy
        with pytest.raises(CallError, match=f"{refused}: its filesystem refuses O_DIRECT") as caught:
            agent.copy(str(source), str(copy), direct=True, timeout_s=30)
        assert caught.value.errno == errno.EINVAL
    agent.copy(str(without / "source"), str(without / "copy"), timeout_s=30)


@pytest.mark.parametrize("direct", [False, True])
@pytest.mark.parametrize("preallocate", [False, True])
def test_a_full_disk_is_said(
    agent: Agent, mounted: Callable[..., Path], direct: bool, preallocate: bool
) -> None:
    small = mounted("tmpfs", "size=2M")
    if direct and not has_direct(small):
        pytest.skip("this kernel has no direct I/O in memory")
    with pytest.raises(CallError) as caught:
        agent.fill(str(small / "f"), 8 * MB, direct=direct, preallocate=preallocate, timeout_s=30)
    assert caught.value.errno == errno.ENOSPC
    with pytest.raises(CallError) as caught:
        agent.write_stream(str(small / "f"), iter([b"x" * MB] * 8), timeout_s=30)
    assert caught.value.errno == errno.ENOSPC
    assert agent.flush(str(small))  # the agent goes on


def test_the_channel_stays_watched_during_a_long_call(tmp_path: Path) -> None:
    """When the controller goes in the middle of a copy, the agent goes too."""
    process, transport = start_host_agent()
    agent = Agent(transport)
    agent.hello()
    import threading

    from guestmark.core.errors import AgentError

    caught = []

    def call() -> None:
        try:
            agent.fill(str(tmp_path / "f"), 4 << 30, Pattern.RANDOM, timeout_s=0.3)
        except AgentError as error:
            caught.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    thread.join(30)
    assert process.wait(20) is not None
    assert "no answer in time" in str(caught[0])
    (tmp_path / "f").unlink(missing_ok=True)


@pytest.mark.parametrize(
    ("memory", "in_flight", "size"), [(512, 4, 32), (256, 4, 16), (64, 2, 8), (16, 4, 1), (1, 64, 1)]
)
def test_requests_are_as_large_as_memory_allows(memory: int, in_flight: int, size: int) -> None:
    assert choose_largest_block(memory << 20, in_flight) == size << 20
    assert choose_largest_block(memory << 20, in_flight, 8 << 20) == min(size, 8) << 20
