"""Data directories with loaded tables, created once and cached: a trial copies one instead of loading tables."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from guestmark.appliance.paths import locate_cache, remove_least_used
from guestmark.core.errors import MachineError
from guestmark.core.keeper import PREFIX, is_in_use, keeper
from guestmark.disks import sparse
from guestmark.disks.scratch import get_scratch_store
from guestmark.workloads.oltp.databases.base import ENVIRONMENT, Account, Database, find_sysbench
from guestmark.workloads.oltp.databases.server import Launcher, Server, open_launcher, pick_telling_lines

# Name of the data directory inside the tree.
DATA = "data"
# On persistent storage, because servers treat files in shared memory differently.
_BUILD = "/var/tmp"
_KEPT = 6
_INSTALL_S = 300.0
_LOAD_S = 3600.0


@dataclass(frozen=True, slots=True)
class Prepared:
    """A loaded data directory: `tree` holds it as `data`, and nothing else.

    `seconds` is the time that it took to create or find it.
    """

    tree: Path
    seconds: float
    was_there: bool


def find_prepared(
    database: Database, settings: Mapping[str, str], *, tables: int, rows: int, account: Account
) -> Prepared:
    """Returns the loaded data directory, from the cache or newly created with the host's own server.

    Raises `MachineError` with the server's log, or with sysbench's message.
    """
    begin = time.monotonic()
    folder = locate_cache() / "databases"
    folder.mkdir(exist_ok=True)
    tree = folder / _compute_cache_key(database, settings, tables, rows, account)
    if tree.exists():
        os.utime(tree)
        return Prepared(tree, time.monotonic() - begin, True)
    parent = get_scratch_store().directory(_BUILD)
    # If this process is root, the server runs as another user.
    parent.chmod(0o711)
    # Data are created in another directory and then copied, so that the cache never contains an incomplete one.
    work = keeper().directory("database", parent)
    part = keeper().directory("part", folder)
    try:
        work.chmod(0o755)
        _build_data(database, settings, work, tables=tables, rows=rows, account=account)
        sparse.copy_tree(work, part)
        with contextlib.suppress(OSError):  # another process may have been faster
            part.rename(tree)
            keeper().forget(part)
    except OSError as error:
        raise MachineError(
            f"cannot create the preloaded database: {error.strerror} ({error.filename})",
            hint=f"free some space in {_BUILD} and {folder}",
        ) from error
    finally:
        keeper().remove(work)
        keeper().remove(part)
    _remove_old_data(folder)
    return Prepared(tree, time.monotonic() - begin, False)


def _compute_cache_key(
    database: Database, settings: Mapping[str, str], tables: int, rows: int, account: Account
) -> str:
    binaries = []
    for path in (database.server_path, find_sysbench()):
        status = Path(path).stat()
        binaries.append((path, status.st_size, status.st_mtime_ns))
    # The first number is the version of the stored form. Sizes and times stand for the programs' versions.
    parts = (2, database.name, binaries, sorted(settings.items()), tables, rows, account.uid, account.gid)
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:20]


def _build_data(
    database: Database, settings: Mapping[str, str], work: Path, *, tables: int, rows: int, account: Account
) -> None:
    agent = get_scratch_store().start_agent()
    data = work / DATA
    data.mkdir(mode=0o700)
    if os.geteuid() != account.uid:
        os.chown(data, account.uid, account.gid)
    with open_launcher(str(data), settings, account, on_host=True) as confined:
        _install_data(database, settings, str(data), confined)
        _load_tables(
            Server(agent, database, str(data), settings, account=account, launcher=confined), tables, rows
        )


def _install_data(database: Database, settings: Mapping[str, str], data: str, launcher: Launcher) -> None:
    agent = get_scratch_store().start_agent()
    for command in database.list_install_commands(data, settings):
        done = agent.exec(launcher.wrap_command(command), env=ENVIRONMENT, cwd="/", timeout_s=_INSTALL_S)
        if not done.ok:
            said = (done.stdout + done.stderr).decode(errors="replace")
            raise MachineError(
                f"{Path(command[0]).name} cannot create a data directory{pick_telling_lines(said)}",
                console=said,
            )


def _load_tables(server: Server, tables: int, rows: int) -> None:
    try:
        server.start_server(_INSTALL_S)
        load = [
            find_sysbench(), "oltp_read_write", *server.database.build_sysbench_options(server.data),
            f"--tables={tables}", f"--table-size={rows}", "--rand-seed=1", "prepare",
        ]  # fmt: skip
        done = server.run_client(load, _LOAD_S)
        if not done.ok:
            said = " ".join((done.stdout + done.stderr).decode(errors="replace").split())
            raise MachineError(f"sysbench cannot load the tables: {said[-400:]}", console=server.log)
        # Without a clean shutdown every trial would begin with recovery.
        server.stop_server()
    finally:
        server.kill_server()


def _remove_old_data(folder: Path) -> None:
    """Removes all but the most recently used directories, and those that killed processes left unfinished."""
    finished = []
    for path in folder.iterdir():
        if not path.name.startswith(PREFIX):
            finished.append(path)
            continue
        # Another process may finish it meanwhile.
        with contextlib.suppress(OSError):
            if not is_in_use(path):
                shutil.rmtree(path, ignore_errors=True)
    remove_least_used(finished, _KEPT)
