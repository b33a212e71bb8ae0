"""Runs one trial of a database step by step."""

import contextlib
import os
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from guestmark.core.context import Context
from guestmark.core.errors import PlatformUnusableError
from guestmark.core.model import Cell
from guestmark.core.platform_spec import PlatformSpec
from guestmark.disks.scratch import get_scratch_store
from guestmark.platforms import registry
from guestmark.platforms.base import Machine
from guestmark.workloads.oltp import ServerSizes
from guestmark.workloads.oltp.databases import KINDS
from guestmark.workloads.oltp.databases.base import ENVIRONMENT, Account
from guestmark.workloads.oltp.databases.server import Server, open_launcher
from guestmark.workloads.oltp.trial import OltpTrial
from tests.framework.cells import plan_of, spec

SMALL = {"tables": 1, "rows": 200, "time": "1", "log": "8M", "buffer": "16M"}


def installed(server: str) -> bool:
    """Return whether the server's programs are installed."""
    try:
        KINDS[server]()
    except PlatformUnusableError:
        return False
    return True


SERVERS = [
    pytest.param(name, marks=pytest.mark.skipif(not installed(name), reason=f"{name} is not installed"))
    for name in ("mariadb", "postgresql")
]


@contextlib.contextmanager
def bare_server(name: str) -> Iterator[Server]:
    """Yield a server on this host with an empty data directory, confined as in a trial."""
    database = KINDS[name]()
    account = Account.choose_account(os.getuid(), os.getgid())
    parent = get_scratch_store().directory("/var/tmp")
    parent.chmod(0o711)
    data = parent / f"data-{name}"
    data.mkdir(0o700)
    os.chown(data, account.uid, account.gid)
    settings = database.derive_settings(ServerSizes(buffer="32M", log="8M"), 20)
    with open_launcher(str(data), settings, account, on_host=True) as confined:
        agent = get_scratch_store().start_agent()
        for command in database.list_install_commands(str(data), settings):
            done = agent.exec(confined.wrap_command(command), env=ENVIRONMENT, cwd="/", timeout_s=60)
            assert done.ok, done
        server = Server(agent, database, str(data), settings, account=account, launcher=confined)
        try:
            server.start_server(60)
            yield server
        finally:
            server.kill_server()
            get_scratch_store().close()


@contextlib.contextmanager
def started(
    platform: str = "host", factors: Mapping[str, str] | None = None, **given: Any
) -> Iterator[tuple[Machine, OltpTrial]]:
    """Yield a machine, and a workload that is not prepared yet."""
    cell = Cell(platform, spec("oltp", **{**SMALL, **given}), PlatformSpec.read(platform), factors or {})
    workload = OltpTrial(plan_of(cell, context=Context(uid=os.getuid(), gid=os.getgid())), cell)
    with workload.machine(registry.get_platform(platform)) as machine:
        yield machine, workload
