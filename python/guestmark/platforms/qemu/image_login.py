"""Puts the agent into a disk image by booting it once, for images that libguestfs cannot open.

The image's overlay boots with a channel to QEMU's guest agent, and with a network on which nothing but its sshd can be
reached, from this host. Whichever of the two lets guestmark in first installs the agent and the service that starts it,
and the system is shut down. It has been booted once then, so that each guest finds what a first boot leaves behind.
"""

from __future__ import annotations

import base64
import contextlib
import secrets
import select
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from guestmark.agent.confinement import Confinement
from guestmark.core.architectures import Architecture
from guestmark.core.errors import MachineError, PlatformUnusableError
from guestmark.core.levels import Levels
from guestmark.core.machine_facts import ImageEntry, ImageFirmware
from guestmark.page.text import last_inert_line
from guestmark.platforms.drives import VirtioBus
from guestmark.platforms.network.qemu_link import NETDEV, format_card
from guestmark.platforms.process import SupervisedProcess
from guestmark.platforms.qemu.accelerators import ACCELERATORS
from guestmark.platforms.qemu.firmware import build_flash_arguments, find_uefi
from guestmark.platforms.ssh_command import UNATTENDED, build_ssh_command, is_final
from guestmark.setting.base import quote_qemu_value

# Booting a complete system under TCG on a busy host takes minutes.
LIMIT_S = 300.0
# How long the other way may still take when one has failed for good: both start at about the same time.
_LAST_CHANCE_S = 60.0
_SHUTDOWN_S = 60.0
_ANSWER_S = 30.0
_PAUSE_S = 3.0
_MEMORY = "1G"
_CHUNK = 192 << 10  # bytes of a file in one message, which the guest agent's parser takes
_PORT_NAME = "org.qemu.guest_agent.0"
# A byte that makes the guest agent drop what it had read before, and that its answer to a sync begins with (the
# protocol of QEMU's guest agent, "guest-sync-delimited").
_DELIMITER = b"\xff"
_MOST_ANSWER = 1 << 20
# Where the script that installs the agent finds it.
UPLOADED_AGENT = "/var/tmp/guestmark-agent"


class NoLoginError(PlatformUnusableError):
    """Neither the image's guest agent nor its sshd let guestmark in."""


def install_by_login(
    overlay: Path,
    firmware: ImageFirmware,
    agent: Path,
    install: str,
    *,
    architecture: Architecture,
    accelerator: str,
) -> ImageEntry:
    """Boot the overlay, copy `agent` to `UPLOADED_AGENT`, run the shell script `install`, and return the way in.

    Raises `NoLoginError` if nobody lets guestmark in within `LIMIT_S`, `MachineError` if the installation fails.
    """
    here, there = socket.socketpair()
    port = _find_free_port()
    virtio = VirtioBus.for_machine(architecture, architecture.machine)
    process = SupervisedProcess("image-login", Confinement(network=True, kvm=accelerator == "kvm"))
    try:
        with there:
            command = [
                architecture.emulator.command, "-nodefaults", "-no-user-config", "-no-reboot", "-display", "none",
                "-machine", architecture.machine, "-accel", accelerator,
                "-cpu", ACCELERATORS[accelerator].choose_default_cpu(architecture),
                "-m", _MEMORY, "-chardev", "stdio,id=console", *architecture.console_device,
                "-drive", f"file={quote_qemu_value(overlay)},format=qcow2,if=none,id=disk",
                "-device", f"{virtio.format_device('virtio-blk')},drive=disk,bootindex=0",
                "-device", virtio.format_device("virtio-serial"), "-chardev", f"socket,id=login,fd={there.fileno()}",
                "-device", f"virtserialport,chardev=login,name={_PORT_NAME}",
                "-netdev", f"user,id={NETDEV},restrict=on,hostfwd=tcp:127.0.0.1:{port}-:22",
                "-device", format_card(Levels({}), virtio),
                *_build_firmware_arguments(architecture, firmware, process.scratch),
            ]  # fmt: skip
            process.start(command, pass_fds=(there.fileno(),), writable=(overlay,))
        entry = _log_in(here, port, process, agent, install)
        process.wait(_SHUTDOWN_S)
        return entry
    finally:
        here.close()
        process.stop()


def _build_firmware_arguments(
    architecture: Architecture, firmware: ImageFirmware, scratch: Path
) -> list[str]:
    if firmware is not ImageFirmware.UEFI:
        return []
    code, template = find_uefi(architecture)
    variables = scratch / "variables.fd"
    shutil.copy(template, variables)
    return build_flash_arguments(code, variables)


def _find_free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


def _log_in(
    channel: socket.socket, port: int, process: SupervisedProcess, agent: Path, install: str
) -> ImageEntry:
    """Try both ways in turn until one lets guestmark in, and install the agent by it."""
    guest_agent, login = _GuestAgent(channel), _SshLogin(port)
    refusal = ""
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        if process.wait(0) is not None:
            raise NoLoginError(
                f"QEMU ended while the image booted: {last_inert_line(process.console.read_text())}"
            )
        if refusal:
            time.sleep(_PAUSE_S)
        elif guest_agent.answers_sync(_PAUSE_S):
            try:
                guest_agent.install_agent(agent, install)
            except NoLoginError as error:
                # Distributions forbid its commands; then sshd may still let the agent in.
                refusal = error.message
            else:
                return ImageEntry.GUEST_AGENT
        if not login.is_refused and login.install_agent(agent, install):
            return ImageEntry.SSH
        if login.is_refused:
            deadline = min(deadline, login.refused_at + _LAST_CHANCE_S)
    raise NoLoginError(
        f"it was booted, but {refusal or 'no guest agent of QEMU answered'}, "
        f"and ssh as root did not get in ({login.said or 'nothing listened'})"
    )


class _GuestAgent:
    """QEMU's guest agent at the other end of a socket: one JSON object for each line."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._received = bytearray()

    def answers_sync(self, timeout_s: float) -> bool:
        """Return whether the guest agent answers a new sync within this time."""
        number = secrets.randbits(31)
        with contextlib.suppress(OSError):
            self._channel.setblocking(False)
            self._channel.send(_DELIMITER + _encode_command("guest-sync-delimited", {"id": number}))
        for line in self._read_lines(timeout_s):
            answer = line.rpartition(_DELIMITER)[2]
            with contextlib.suppress(msgspec.DecodeError):
                if msgspec.json.decode(answer) == {"return": number}:
                    return True
        return False

    def install_agent(self, agent: Path, script: str) -> None:
        """Copy the agent, run the script and shut down. Raises `NoLoginError` if the guest agent refuses that."""
        self._upload_file(agent, UPLOADED_AGENT)
        self._run_script(script)
        # This has no answer.
        self._send_command("guest-shutdown", {"mode": "powerdown"})

    def _upload_file(self, source: Path, target: str) -> None:
        handle = self._execute_command("guest-file-open", {"path": target, "mode": "wb"})
        with source.open("rb") as stream:
            while piece := stream.read(_CHUNK):
                text = base64.b64encode(piece).decode()
                self._execute_command("guest-file-write", {"handle": handle, "buf-b64": text})
        self._execute_command("guest-file-close", {"handle": handle})

    def _run_script(self, script: str) -> None:
        """Run a shell script in the guest until it ends. Raises `MachineError` if it fails."""
        words = {"path": "/bin/sh", "arg": ["-c", script], "capture-output": True}
        started = self._execute_command("guest-exec", words)
        deadline = time.monotonic() + _ANSWER_S
        while time.monotonic() < deadline:
            status = self._execute_command("guest-exec-status", started)
            if isinstance(status, dict) and status.get("exited"):
                if status.get("exitcode") == 0:
                    return
                said = base64.b64decode(str(status.get("err-data", ""))).decode(errors="replace")
                raise MachineError(
                    f"the agent cannot be installed by the guest agent: {last_inert_line(said)}"
                )
            time.sleep(0.1)
        raise MachineError(f"the agent was not installed within {_ANSWER_S:g} s")

    def _execute_command(self, command: str, arguments: Any) -> Any:
        self._send_command(command, arguments)
        for line in self._read_lines(_ANSWER_S):
            with contextlib.suppress(msgspec.DecodeError):
                answer = msgspec.json.decode(line.rpartition(_DELIMITER)[2])
                if isinstance(answer, dict) and "return" in answer:
                    return answer["return"]
                if isinstance(answer, dict) and "error" in answer:
                    why = last_inert_line(str(answer["error"].get("desc", "")))
                    raise NoLoginError(f"its guest agent refuses {command}: {why}")
        raise NoLoginError(f"its guest agent did not answer {command}")

    def _send_command(self, command: str, arguments: Any) -> None:
        self._channel.settimeout(_ANSWER_S)
        try:
            self._channel.sendall(_encode_command(command, arguments))
        except OSError as error:
            raise NoLoginError(f"its guest agent ended before {command}") from error

    def _read_lines(self, timeout_s: float) -> Iterator[bytes]:
        deadline = time.monotonic() + timeout_s
        self._channel.setblocking(False)
        while (left := deadline - time.monotonic()) > 0 and len(self._received) < _MOST_ANSWER:
            if not select.select([self._channel], [], [], left)[0]:
                return
            try:
                data = self._channel.recv(65536)
            except OSError:
                return
            if not data:
                time.sleep(min(left, _PAUSE_S))
                return
            self._received += data
            while b"\n" in self._received:
                line, _, rest = bytes(self._received).partition(b"\n")
                self._received = bytearray(rest)
                yield line


def _encode_command(command: str, arguments: Any) -> bytes:
    return msgspec.json.encode({"execute": command, "arguments": arguments}) + b"\n"


class _SshLogin:
    """The image's sshd, for root, with the keys that this user's ssh offers."""

    def __init__(self, port: int) -> None:
        self._options: Sequence[str] = (
            "-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-o", "LogLevel=ERROR",
            "-p", str(port), "--", "root@127.0.0.1",
        )  # fmt: skip
        self.said = ""
        self.is_refused = False
        self.refused_at = 0.0

    def install_agent(self, agent: Path, script: str) -> bool:
        """Copy the agent, run the script and shut down; return whether that worked."""
        remote = f"cat > {UPLOADED_AGENT} && {{ {script} }} && {{ systemctl poweroff || poweroff; }} > /dev/null 2>&1"
        with agent.open("rb") as content:
            try:
                done = subprocess.run(
                    [*build_ssh_command(), *UNATTENDED, *self._options, remote],
                    stdin=content, capture_output=True, text=True, errors="replace", timeout=_ANSWER_S, check=False,
                )  # fmt: skip
            except (OSError, subprocess.TimeoutExpired) as error:
                self.said = last_inert_line(str(error))
                return False
        self.said = last_inert_line(done.stderr) or self.said
        if done.returncode and is_final(done.stderr):
            self.is_refused, self.refused_at = True, time.monotonic()
        return done.returncode == 0
