"""Power cuts: reading logs of writes, choosing what survives, replaying it, and judging what is left."""

import errno
import os
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

from guestmark.core.errors import MachineError, UsageError
from guestmark.core.findings import Durability
from guestmark.disks.logged import LoggedFiles
from guestmark.powercut import cuts, evidence, proof, records
from guestmark.powercut.cuts import Cut, Piece, Survival
from guestmark.powercut.judge import JudgeInput, Replay, copy_without_zeroes, judge_cuts
from guestmark.powercut.records import Acknowledged, Method
from guestmark.powercut.recovery import convert_to_raw, explain_not_recoverable, start_recovery
from guestmark.powercut.superblock import compute_crc32c
from guestmark.powercut.writelog import Entry, Flag, WriteLog, read_refusal
from tests.framework import write_logs
from tests.framework.known import known
from tests.framework.marks import long
from tests.framework.write_logs import FLUSH, FUA, Request, mark

TAG = "tag:"


def block(letter: str, size: int = 4096) -> bytes:
    return letter.encode() * size


@pytest.fixture
def log(tmp_path: Path) -> WriteLog:
    """Four writes, a flush after the second, the last but one with FUA."""
    requests: list[Request] = [
        (0, block("a"), 0), (4096, block("b"), 0), (0, b"", FLUSH),
        (0, block("c"), 0), (8192, block("d"), FUA), (4096, block("e"), 0),
    ]  # fmt: skip
    return WriteLog(write_logs.write(tmp_path / "log", requests))


def test_a_log_is_read_with_its_data(log: WriteLog) -> None:
    assert [entry.offset for entry in log.entries] == [0, 4096, 0, 0, 8192, 4096]
    assert [entry.is_flush for entry in log.entries] == [False, False, True, False, False, False]
    assert log.read_data(log.entries[5]) == block("e")


def test_a_log_says_with_which_error_it_refused_a_request(tmp_path: Path) -> None:
    path = tmp_path / "log"
    assert write_logs.write(path, [(0, block("a"), 0)]) == path
    assert read_refusal(path) == 0
    with path.open("r+b") as file:
        file.seek(32)
        file.write((28).to_bytes(8, "little"))
    assert read_refusal(path) == errno.ENOSPC
    path.write_bytes(b"")
    assert read_refusal(path) == 0


def test_a_log_without_any_flush_has_no_superblock_yet(tmp_path: Path) -> None:
    path = write_logs.write(tmp_path / "log", [(512, block("a"), 0)], superblock=False)
    assert [entry.offset for entry in WriteLog(path).entries] == [512]


def test_a_log_whose_last_write_is_cut_short_ends_before_it(tmp_path: Path) -> None:
    path = write_logs.write(tmp_path / "log", [(0, block("a"), 0), (0, block("b"), 0)])
    path.write_bytes(path.read_bytes()[:-1])
    assert len(WriteLog(path)) == 1


def test_what_is_no_log_is_refused(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"something else" * 100)
    with pytest.raises(MachineError, match="not a log of writes"):
        WriteLog(tmp_path / "log")


@pytest.mark.parametrize(
    ("after", "survival", "left"),
    [
        (2, Survival.NONE, b"--"),
        (2, Survival.HALF, b"a-"),
        (2, Survival.ALL, b"ab"),
        (3, Survival.NONE, b"ab"),  # the flush covers both
        (4, Survival.NONE, b"ab"),
        (4, Survival.ALL, b"cb"),
        (6, Survival.NONE, b"abd"),  # FUA needs no flush
        (6, Survival.ALL, b"ced"),
    ],
)
def test_what_survives_a_cut(
    log: WriteLog, tmp_path: Path, after: int, survival: Survival, left: bytes
) -> None:
    base = tmp_path / "base"
    base.write_bytes(block("-", 3 * 4096))
    replay = Replay(base, log, log.entries, tmp_path)
    image = replay.make_image(cuts.make_cut_at(log.entries, after, survival)).read_bytes()
    assert bytes(image[start] for start in range(0, 3 * 4096, 4096)).startswith(left)
    replay.close()
    assert base.read_bytes() == block("-", 3 * 4096)


def test_a_torn_write_survives_in_whole_sectors(log: WriteLog, tmp_path: Path) -> None:
    (tmp_path / "base").write_bytes(block("-", 3 * 4096))
    replay = Replay(tmp_path / "base", log, log.entries, tmp_path)
    image = replay.make_image(Cut(1, 0, Survival.TORN_512, (Piece(0, 512, 1024),))).read_bytes()
    assert image[:512] + image[512:1536] + image[1536:1537] == block("-", 512) + block("a", 1024) + b"-"


def test_states_differ_and_are_the_same_for_the_same_seed(log: WriteLog) -> None:
    chosen = cuts.choose_cuts(log.entries, [4, 6], start=0, count=50, seed=1)
    assert len({cut.outcome for cut in chosen.cuts}) == len(chosen.cuts) > 10
    assert chosen == cuts.choose_cuts(log.entries, [4, 6], start=0, count=50, seed=1)
    assert chosen.cuts != cuts.choose_cuts(log.entries, [4, 6], start=0, count=50, seed=2).cuts
    assert [cut.kept for cut in chosen.cuts] == sorted(cut.kept for cut in chosen.cuts)


def test_the_worst_state_of_each_acknowledgement_is_covered_and_each_cut_between_requests(
    log: WriteLog,
) -> None:
    chosen = cuts.choose_cuts(log.entries, [4, 6], start=0, count=0, seed=1)
    outcomes = {cut.outcome: cut.after for cut in chosen.cuts}
    for after in (4, 6):
        assert outcomes[cuts.make_cut_at(log.entries, after, Survival.NONE).outcome] >= after
    for after in range(len(log) + 1):
        assert cuts.make_cut_at(log.entries, after, Survival.ALL).outcome in outcomes
    assert str(chosen.coverage) == "all 2 acknowledgements, all 7 cuts, 0 of 5 torn writes, 0 random states"


@pytest.mark.parametrize("step", [7, long(1)])
def test_one_dropped_flush_of_many_is_found(step: int) -> None:
    """Whichever it is: the worst state after each acknowledgement has no luck to need."""
    for dropped in range(0, 301, step):
        entries = []
        for number in range(301):
            entries.append(Entry(number * 512, 512, Flag(0)))
            if number != dropped:
                entries.append(Entry(0, 0, Flag.FLUSH))
            entries.append(Entry(0, 0, Flag.MARK, mark=number + 1))
        seen = Acknowledged.from_marks(entries, 0, len(entries))
        chosen = cuts.choose_cuts(entries, seen.acknowledgement_moments, start=0, count=0, seed=1)
        assert any(
            seen.find_newest_after(cut.after) >= dropped and not _has(entries, cut, dropped)
            for cut in chosen.cuts
        )


def _has(entries: list[Entry], cut: Cut, number: int) -> bool:
    position = next(at for at, entry in enumerate(entries) if entry.is_write and entry.offset == number * 512)
    return position < cut.kept or any(piece.entry == position for piece in cut.pieces)


def test_many_cuts_are_limited_and_said_to_be() -> None:
    entries = [Entry(number * 512, 512, Flag(0)) for number in range(100)]
    chosen = cuts.choose_cuts(entries, range(1, 101), start=0, count=0, seed=1, most=40)
    assert len(chosen.cuts) <= 40
    assert str(chosen.coverage).startswith("20 of 100 acknowledgements, 10 of 101 cuts")


@pytest.mark.parametrize("most", range(1, 6))
def test_however_few_states_are_asked_for_the_worst_is_among_them(most: int) -> None:
    entries = [Entry(number * 512, 512, Flag(0)) for number in range(100)]
    chosen = cuts.choose_cuts(entries, range(1, 101), start=0, count=0, seed=1, most=most)
    assert cuts.make_cut_at(entries, 100, Survival.NONE) in chosen.cuts
    assert len(chosen.cuts) <= most + 2


def test_dropped_flushes_leave_everything_in_flight(log: WriteLog) -> None:
    without = cuts.drop_flushes(log.entries, 0)
    assert cuts.make_cut_at(without, 6, Survival.NONE).pieces == ()
    assert not cuts.is_write_through(without, 0)


@pytest.mark.parametrize("seed", range(4))
def test_a_scrambled_disk_lacks_what_later_writes_rely_on(seed: int) -> None:
    """Of files that are each written, synced and renamed, many states have the new name and not the content."""
    entries: list[Entry] = []
    content = []
    for number in range(12):
        content.append(len(entries))
        journal = 1 << 20
        entries += [
            Entry(number * 4096, 4096, Flag(0)), Entry(journal, 8192, Flag(0)), Entry(0, 0, Flag.FLUSH),
            Entry(journal, 4096, Flag(0)), Entry(0, 0, Flag.FLUSH),
        ]  # fmt: skip
    chosen = cuts.choose_scrambled_cuts(entries, start=0, count=96, seed=seed)
    found = 0
    for cut in chosen.cuts:
        there = {piece.entry for piece in cut.pieces}
        missing = [position for position in range(cut.kept, cut.after) if entries[position].length]
        missing = [position for position in missing if position not in there]
        found += len(missing) == 1 and missing[0] in content and cut.after >= missing[0] + 5
    assert len(chosen.cuts) > 60
    assert found >= 12


def test_a_record_is_acknowledged_from_its_mark_on(tmp_path: Path) -> None:
    requests: list[Request] = [
        (0, block("a"), 0),
        mark(0),
        (0, block("b"), 0),
        mark(1),
        mark(2),
        (0, block("c"), 0),
    ]
    with WriteLog(write_logs.write(tmp_path / "log", requests)) as log:
        seen = Acknowledged.from_marks(log.entries, 0, len(log))
        assert [seen.find_newest_after(requests) for requests in range(7)] == [-1, -1, -1, -1, 0, 1, 1]
        assert (seen.requests_before_first_record, seen.acknowledgement_moments) == (2, (4, 5))
        assert Acknowledged.from_marks(log.entries, 5, 6).acknowledgement_moments == ()


def whole(*numbers: int, size: int = 512) -> bytes:
    return b"".join(records.make_record(TAG, number, size) for number in numbers)


@pytest.mark.parametrize(
    ("method", "acknowledged", "content", "lost"),
    [
        (Method.APPEND, 2, whole(0, 1, 2), None),
        (Method.APPEND, 2, whole(0, 1, 2) + b"\0" * 512, None),  # one more was on its way
        (Method.APPEND, 2, whole(0, 1), 2),
        (Method.APPEND, 2, whole(0) + b"\0" * 512 + whole(2), 1),
        (Method.APPEND, -1, None, None),
        (Method.APPEND, 0, None, 0),
        (Method.REPLACE, 4, whole(4, size=4096), None),
        (Method.REPLACE, 4, whole(5, size=4096), None),
        (Method.REPLACE, 4, whole(3, size=4096), 4),
        (Method.REPLACE, 4, whole(5, size=4096)[:4000], 4),
        (Method.REPLACE, 4, None, 4),
        (Method.OVERWRITE, 1, whole(0, 1, size=4096), None),
        (Method.OVERWRITE, 1, whole(0, 0, size=4096), 1),
        # Record 8 may be half on its way over record 0.
        (Method.OVERWRITE, 7, b"?" * 4096 + whole(1, 2, 3, 4, 5, 6, 7, size=4096), None),
        (Method.OVERWRITE, 7, whole(0, 1, 2, 3, 4, 5, 6, 6, size=4096), 7),
    ],
)
def test_records_are_looked_for(
    method: Method, acknowledged: int, content: bytes | None, lost: int | None
) -> None:
    assert records.find_lost_record(method, TAG, acknowledged, content) == lost


def test_sqlite_recovers_its_rows_itself(tmp_path: Path) -> None:
    database = tmp_path / "records"
    subprocess.run(records.build_writer_command(str(database), TAG, 5), check=True, capture_output=True)
    files: dict[str, bytes | None] = {
        name: (tmp_path / name).read_bytes() for name in Method.SQLITE.list_record_files("records")
    }
    assert records.find_lost_row(TAG, 4, "records", files) is None
    assert records.find_lost_row(TAG, 5, "records", files) == 5
    log = known(files["records-wal"])
    assert (
        records.find_lost_row(TAG, 4, "records", {**files, "records-wal": log[: len(log) * 2 // 3]})
        is not None
    )
    assert records.find_lost_row(TAG, 4, "records", {"records": b"torn" * 1024}) == 0
    assert records.find_lost_row(TAG, 0, "records", {"records": None}) == 0


def test_a_copy_has_holes_where_there_are_zeroes(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(block("a") + bytes(1 << 20) + block("b"))
    copy_without_zeroes(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "b").read_bytes() == (tmp_path / "a").read_bytes()
    assert (tmp_path / "b").stat().st_blocks * 512 < 64 << 10


class Written:
    """An ext4 image to which files are written whole, each in a request of its own for every block that changes."""

    def __init__(self, directory: Path, *, flushes: bool, early: bool = False) -> None:
        self.base, self.below = directory / "base", directory / "below"
        with self.base.open("wb") as file:
            file.truncate(2 << 20)
        subprocess.run(
            ["mke2fs", "-q", "-F", "-t", "ext2", str(self.base)], check=True, stdin=subprocess.DEVNULL
        )
        shutil.copy(self.base, self.below)
        self.requests: list[Request] = []
        for number in range(1, 6):
            content = directory / "content"
            content.write_bytes(
                b"".join(records.make_record(proof.PROOF.text, n, 512) for n in range(number))
            )
            before = self.below.read_bytes()
            subprocess.run(
                ["debugfs", "-w", "-f", "-", str(self.below)],
                input=f"rm records\nwrite {content} records\n".encode(), check=True, capture_output=True,
            )  # fmt: skip
            after = self.below.read_bytes()
            # Data before metadata, as from the end: a replaced file is not a safe one, but only fsync is asked here.
            for start in sorted(range(0, len(after), 1024), reverse=True):
                if before[start : start + 1024] != after[start : start + 1024]:
                    self.requests.append((start, after[start : start + 1024], 0))
            if flushes:
                self.requests.append((0, b"", FLUSH))
            # Who acknowledges early does so before its flush.
            self.requests.insert(len(self.requests) - (flushes and early), mark(number))
        self.log = write_logs.write(directory / "log", self.requests, superblock=flushes)

    def request(self, location: Path, counted: int | None = None) -> proof.ProofRequest:
        files = LoggedFiles(self.base, self.log, self.below)
        end = len(self.requests)
        return proof.ProofRequest(
            files=files, filesystem="ext2", form="raw", location=str(location), method=Method.APPEND, states=40,
            seed=1, written=proof.LogPart(proof.PROOF, 5, 0, end, end), counts=proof.FlushCounts(hypervisor=counted),
        )  # fmt: skip


def test_dropped_flushes_are_called_lost_and_the_log_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    found = proof.prove_durability(Written(tmp_path, flushes=False).request(tmp_path, counted=61))
    assert found.word is Durability.LOST
    assert found.losing > 0
    assert "the hypervisor counted 61, this host's kernel saw none" in found.why
    assert found.first_loss.startswith("record ")
    assert all(control.is_caught for control in found.controls)
    kept = evidence.load_evidence(found.kept)
    assert kept.method is Method.APPEND
    assert [crash for crash in kept.crashes if crash["lost"] is not None]
    with pytest.raises(UsageError, match="no log of writes"):
        evidence.load_evidence("no-such-log")


@pytest.mark.parametrize(("flushes", "early"), [(True, True), (False, False)])
def test_an_early_return_is_told_from_a_dropped_flush(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flushes: bool, early: bool
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    found = proof.prove_durability(Written(tmp_path, flushes=flushes, early=early).request(tmp_path))
    assert found.word is Durability.LOST
    # With each flush right after its acknowledgement, what is lost is always one request from being safe.
    assert (found.early_states, found.early_requests) == ((found.losing, 1) if early else (0, 0))


def test_a_program_that_acknowledges_early_itself_is_no_early_return(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A database that was told not to wait for its log is no fault of what runs below it."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    request = Written(tmp_path, flushes=True, early=True).request(tmp_path)
    for method in (Method.SQLITE, Method.MARIADB, Method.POSTGRESQL, Method.COMMAND):
        assert not method.is_call
    monkeypatch.setattr(Method, "is_call", False)
    found = proof.prove_durability(request)
    assert found.losing > 0
    assert (found.early_states, found.early_requests) == (0, 0)


def test_memory_below_a_good_log_is_called_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    request = Written(tmp_path, flushes=True).request(Path("/dev/shm"))
    judged = proof.prove_durability(request)
    assert known(judged).word in {Durability.MEMORY, Durability.LOST}


def test_a_log_in_which_most_writes_are_flushed_is_one_of_a_disk_without_a_cache(tmp_path: Path) -> None:
    requests: list[Request] = [(0, block("a"), 0), (4096, block("b"), 0), (0, b"", FLUSH)] * 5
    with WriteLog(write_logs.write(tmp_path / "log", requests)) as log:
        assert cuts.is_write_through(log.entries, 0)
        assert not cuts.is_write_through(cuts.drop_flushes(log.entries, 0), 0)


@pytest.mark.parametrize(
    "options", [(), ("-o", "cluster_size=4096"), ("-o", "preallocation=metadata")], ids=str
)
def test_a_qcow2_image_is_read_as_qemu_reads_it(options: tuple[str, ...], tmp_path: Path) -> None:
    image, ours, theirs = tmp_path / "image", tmp_path / "ours", tmp_path / "theirs"
    script = (
        "-c",
        "write -P 1 0 5000",
        "-c",
        "write -P 2 1M 300k",
        "-c",
        "write -z 1M 64k",
        "-c",
        "discard 1100k 64k",
    )
    subprocess.run(["qemu-img", "create", "-q", "-f", "qcow2", *options, image, "9M"], check=True)
    subprocess.run(["qemu-io", "-f", "qcow2", *script, image], check=True, capture_output=True)
    subprocess.run(["qemu-img", "convert", "-O", "raw", image, theirs], check=True)
    assert convert_to_raw(image, ours)
    assert ours.read_bytes() == theirs.read_bytes()
    assert any(ours.read_bytes())


@pytest.mark.parametrize("options", [("-c",), ("-o", "extended_l2=on")], ids=str)
def test_a_qcow2_image_that_is_not_plain_is_left_to_qemu(options: tuple[str, ...], tmp_path: Path) -> None:
    raw, image = tmp_path / "raw", tmp_path / "image"
    raw.write_bytes(b"x" * (1 << 20))
    subprocess.run(["qemu-img", "convert", "-f", "raw", "-O", "qcow2", *options, raw, image], check=True)
    assert not convert_to_raw(image, tmp_path / "ours")
    assert not (tmp_path / "ours").exists()


@pytest.mark.skipif(
    bool(explain_not_recoverable("btrfs", mounted=True)), reason="btrfs cannot be mounted here"
)
@pytest.mark.parametrize(("copy", "damaged"), [(True, False), (False, True)])
def test_a_torn_superblock_of_btrfs_is_taken_from_its_copy(tmp_path: Path, copy: bool, damaged: bool) -> None:
    image = tmp_path / "image"
    image.touch()
    os.truncate(image, 160 << 20)
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "file").write_bytes(b"kept")
    subprocess.run(["mkfs.btrfs", "-q", "--rootdir", str(tmp_path / "tree"), image], check=True)
    with image.open("r+b") as file:
        for at in (64 << 10, *([] if copy else [64 << 20])):
            file.seek(at + 512)
            file.write(b"\xff" * 512)
    with start_recovery("btrfs", "raw", tmp_path) as recovers:
        found = recovers.recover(image, ["file"], 0, exact=False)
    assert bool(found.damage) is damaged
    assert found.files.get("file") == (None if damaged else b"kept")
    assert damaged or found.repairs == ("a torn superblock was restored from its copy",)
    assert found.torn_superblock


@pytest.mark.skipif(
    bool(explain_not_recoverable("btrfs", mounted=True)), reason="btrfs cannot be mounted here"
)
def test_what_is_lost_with_a_torn_superblock_is_not_the_program_s_loss(tmp_path: Path) -> None:
    image = tmp_path / "image"
    image.touch()
    os.truncate(image, 160 << 20)
    subprocess.run(["mkfs.btrfs", "-q", image], check=True)
    with image.open("rb") as file:
        file.seek(64 << 10)
        superblock = bytearray(file.read(4096))
    # A label that lies in the first two sectors.
    superblock[299:555] = b"x" * 255 + b"\0"
    superblock[:4] = struct.pack("<I", compute_crc32c(bytes(superblock[32:])))
    path = write_logs.write(tmp_path / "log", [(64 << 10, bytes(superblock), 0)])
    with WriteLog(path) as log:
        evidence = JudgeInput(
            image, log, "btrfs", "raw", ("file",), acknowledged=lambda _: 0, lost=lambda _newest, _files: 0,
            moment=lambda _: 0,
        )  # fmt: skip
        torn = Cut(1, 0, Survival.TORN_512, (Piece(0, 0, 512),))
        whole = Cut(1, 1, Survival.ALL, ())
        (tmp_path / "cuts").mkdir()
        judged = judge_cuts(evidence, log.entries, [torn, whole], tmp_path / "cuts")
    # Nothing survives in either; in the one state that is whole it is the program that has lost it.
    assert (judged.states, judged.losing, judged.torn_superblocks) == (2, 1, 1)


def test_each_large_write_is_torn_once_with_all_before_it(tmp_path: Path) -> None:
    """A page of a database that is half there has to be a state that is looked at, not one that chance may bring."""
    entries = [
        Entry(0, 4096, Flag(0), 0), Entry(0, 0, Flag.FLUSH, 0), Entry(8192, 16384, Flag(0), 0),
        Entry(4096, 512, Flag(0), 0), Entry(32768, 8192, Flag.FUA, 0), Entry(0, 65536, Flag.DISCARD, 0),
    ]  # fmt: skip
    chosen = cuts.choose_cuts(entries, [], start=0, count=10, seed=1)
    torn = {cut.after: cut for cut in chosen.cuts if cut.survival is Survival.TORN_LAST}
    assert (chosen.coverage.torn, chosen.coverage.tearable) == (3, 3)
    assert set(torn) == {1, 3, 5}
    # In the middle a database's page may end, and nothing would be torn.
    assert (torn[3].kept, torn[3].pieces) == (2, (Piece(2, 0, 4096),))
    assert (torn[5].kept, torn[5].pieces) == (4, (Piece(4, 0, 4096),))
    few = cuts.choose_cuts(entries, [], start=0, count=1, seed=1)
    assert [cut.after for cut in few.cuts if cut.survival is Survival.TORN_LAST] == [3]  # the largest


@pytest.mark.parametrize("pages", range(1, 40))
@pytest.mark.parametrize("page", [8192, 16384])
def test_a_write_of_whole_pages_is_torn_within_one(pages: int, page: int) -> None:
    entries = [Entry(0, pages * page, Flag(0), 0), Entry(0, 0, Flag.FLUSH, 0)]
    chosen = cuts.choose_cuts(entries, [], start=0, count=3, seed=1, checkpoints=[range(2)])
    torn = [cut for cut in chosen.cuts if cut.survival is Survival.TORN_LAST]
    assert chosen.coverage.torn == 1
    assert torn
    for cut in torn:
        (piece,) = cut.pieces
        assert 0 < piece.length < pages * page
        assert piece.length % 8192


def test_what_checkpoints_write_is_torn_before_anything_else() -> None:
    entries = [Entry(at * 65536, 65536, Flag(0), 0) for at in range(20)]
    entries += [Entry(at * 65536, 16384, Flag(0), 0) for at in range(2)]
    for most, torn in ((1, 1), (4, 2), (8, 4)):
        chosen = cuts.choose_cuts(
            entries, [], start=0, count=40, seed=1, most=4 * most, checkpoints=[range(20, 22)]
        )
        ends = {cut.after for cut in chosen.cuts if cut.survival is Survival.TORN_LAST}
        assert chosen.coverage.torn == torn
        assert {21, 22} & ends == ({21} if torn == 1 else {21, 22})
        assert len(ends) == torn
