"""The device with the agent's port has room for those of the layers inside."""

import subprocess

import pytest

from guestmark.core.architectures import ARCHITECTURES
from guestmark.platforms.drives import VirtioBus
from guestmark.platforms.qemu.command_line import build_channel_arguments
from guestmark.platforms.qemu.nested.place import PORTS


class NullLine:
    """A line that leads nowhere."""

    def format_chardev(self, name: str) -> str:
        return f"null,id={name}"


@pytest.mark.parametrize("layers", range(6))
def test_qemu_takes_every_port_of_every_layer(layers: int) -> None:
    virtio = VirtioBus.for_machine(next(row for row in ARCHITECTURES.values() if row.is_host), "q35")
    names = [f"{name}-{layer}" for layer in range(layers) for name in PORTS]
    command = [
        "qemu-system-x86_64", "-nodefaults", "-display", "none", "-machine", "q35,accel=tcg", "-S",
        *build_channel_arguments(NullLine(), virtio, len(names) + 1),  # type: ignore[arg-type]
    ]  # fmt: skip
    for name in names:
        command += ["-chardev", f"null,id={name}", "-device", f"virtserialport,chardev={name},name={name}"]
    done = subprocess.run(
        [*command, "-monitor", "stdio"],
        input="quit\n",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
