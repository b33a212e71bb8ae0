"""What makes a domain fresh before a trial, and ends it afterwards, also when this process is killed."""

from __future__ import annotations

import contextlib
import os
import select
import shlex
import signal
import subprocess
import time
from collections.abc import Iterator
from xml.etree import ElementTree

from guestmark.core.errors import MachineError, PlatformUnusableError
from guestmark.platforms.virsh.factors import NONE, THROW_AWAY
from guestmark.platforms.virsh.manager import call, environment, program, refusal

_STARTED = "guestmark-started"
_STOP_S = 20.0
_OFF = "shut off"
_QEMU = "http://libvirt.org/schemas/domain/qemu/1.0"
# The script starts the domain, says so, waits until nobody holds its input any more, and ends the domain. Signals
# to end do not reach it: it ends when what it has begun is undone.
_LIFE = f"""
trap '' INT TERM HUP PIPE
{{begin}} || exit 1
echo {_STARTED} 2> /dev/null
cat > /dev/null
{{virsh}} destroy {{domain}} > /dev/null 2>&1
exit 0
"""


def begun(domain: str, way: str, deadline: float) -> contextlib.AbstractContextManager[str]:
    """Makes the domain fresh in that way (a level of `SNAPSHOT`); yields in words what was done, empty if nothing.

    Raises `PlatformUnusableError` for a domain that cannot be made so, `MachineError` for what libvirt refuses.
    """
    state = call(domain, "domstate", domain).strip()
    if way == NONE:
        if state != "running":
            raise PlatformUnusableError(f"{domain} is {state}", hint=f"start it: virsh start {domain}")
        return contextlib.nullcontext("")
    if way != THROW_AWAY:
        return _reverted(domain, way, deadline, was_off=state == _OFF)
    if state != _OFF:
        raise PlatformUnusableError(
            f"{domain} is {state}, and nothing says what makes it fresh",
            hint=f"virsh shutdown {domain}: each trial then starts it from throw-away disks; or name a snapshot "
            f"to go back to, which gives up what it is now: --set snapshot=NAME; or --set snapshot={NONE}",
        )
    return _thrown_away(domain, deadline)


@contextlib.contextmanager
def _thrown_away(domain: str, deadline: float) -> Iterator[str]:
    definition = transient(call(domain, "dumpxml", "--inactive", "--security-info", domain))
    begin = f"head -c {len(definition)} | {_virsh()} create /dev/stdin > /dev/null"
    with _alive(domain, begin, definition, deadline):
        yield "a start from throw-away disks"


@contextlib.contextmanager
def _reverted(domain: str, snapshot: str, deadline: float, *, was_off: bool) -> Iterator[str]:
    fresh = f"going back to its snapshot {snapshot}"
    revert = ("snapshot-revert", domain, snapshot, "--running")
    if was_off:  # and is afterwards
        with _alive(domain, f"{_virsh()} {shlex.join(revert)} > /dev/null", b"", deadline):
            yield fresh
    else:
        call(domain, *revert, timeout_s=max(1.0, deadline - time.monotonic()))
        yield fresh


@contextlib.contextmanager
def _alive(domain: str, begin: str, given: bytes, deadline: float) -> Iterator[None]:
    """Inside, the domain runs; a process of its own ends it when the context is left or this process is gone."""
    script = _LIFE.format(begin=begin, virsh=_virsh(), domain=shlex.quote(domain))
    life = subprocess.Popen(
        ["/bin/sh", "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
        start_new_session=True,
    )
    assert life.stdin is not None
    try:
        with contextlib.suppress(BrokenPipeError):
            life.stdin.write(given)
            life.stdin.flush()
        _await_start(domain, life, deadline)
        yield
    finally:
        with contextlib.suppress(OSError):
            life.stdin.close()
        try:
            life.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            os.killpg(life.pid, signal.SIGKILL)
            life.wait()
        for stream in (life.stdout, life.stderr):
            assert stream is not None
            stream.close()


def _await_start(domain: str, life: subprocess.Popen[bytes], deadline: float) -> None:
    assert life.stdout is not None
    assert life.stderr is not None
    ready, _, _ = select.select([life.stdout], [], [], max(0.0, deadline - time.monotonic()))
    if not ready:
        raise MachineError(f"libvirt did not start {domain} in time", hint="try it by hand with virsh")
    if life.stdout.readline().strip() != _STARTED.encode():
        raise refusal(domain, life.stderr.read().decode(errors="replace"))


def transient(definition: str) -> bytes:
    """The domain's definition with disks that keep nothing of what is written to them."""
    ElementTree.register_namespace("qemu", _QEMU)
    root = ElementTree.fromstring(definition)
    for disk in root.iterfind("devices/disk"):
        keeps = disk.get("device", "disk") == "disk" and all(
            disk.find(name) is None for name in ("readonly", "transient")
        )
        if keeps:
            ElementTree.SubElement(disk, "transient")
    return ElementTree.tostring(root)


def _virsh() -> str:
    return f"{shlex.join(program())} -q"
