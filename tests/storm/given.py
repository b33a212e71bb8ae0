"""What some modes of the storm are given: a capture, and a history of commits."""

import struct
import subprocess
from pathlib import Path

from tests.framework.own_machines import quoted


def packets(file: Path, count: int = 60_000) -> None:
    """Segments of TCP between many pairs of ports, enough for a second of work."""
    with file.open("wb") as out:
        out.write(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1))
        for number in range(count):
            source, flags = 1024 + number // 12 % 40_000, 2 if number % 12 == 0 else 16
            tcp = struct.pack(">HHIIBBHHH", source, 80, number, 0, 0x50, flags, 8192, 0, 0)
            ip = struct.pack(
                ">BBHHHBBH4s4s", 0x45, 0, 20 + len(tcp), 0, 0, 64, 6, 0, b"\x0a\0\0\1", b"\x0a\0\0\2"
            )
            frame = bytes(12) + b"\x08\0" + ip + tcp
            out.write(
                struct.pack("<IIII", number // 1000, number % 1000 * 1000, len(frame), len(frame)) + frame
            )


def commits(folder: Path) -> None:
    """A repository with some commits."""
    git = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@localhost"]
    subprocess.run([*git, "init", "-q"], check=True)
    for number in range(6):
        (folder / "file").write_text(str(number))
        subprocess.run([*git, "add", "file"], check=True)
        subprocess.run([*git, "commit", "-q", "-m", str(number)], check=True)


# Namespaces that any user may make. Creating and destroying take their time, so that kills hit them.
_CREATE = (
    "sleep 0.2; setsid unshare --user --map-root-user --fork --pid --kill-child --mount --uts --mount-proc sh -c "
    "'mount -t tmpfs none /tmp && mount -t tmpfs none /var/tmp && touch /tmp/up && exec sleep infinity' "
    '> /dev/null 2>&1 < /dev/null & sleep 0.2; echo $! > "$0/$1"; sleep 0.2'
)
_FIND = 'machine=$(cat /proc/$(cat "$0/$1")/task/*/children | cut -d" " -f1 | grep .) && shift'
_ENTER = f'{_FIND} && exec nsenter --target "$machine" --user --preserve-credentials --pid --mount --uts "$@"'
_DESTROY = '[ ! -e "$0/$1" ] || { kill -KILL $(cat "$0/$1"); sleep 0.2; rm "$0/$1"; }'

# A snapshot is a file beside those of machines. It is there before it is whole, as that of a slow tool.
_SAVE = (
    'saved=$0/$2; : > "$saved"; sleep 0.2; '
    f'{_FIND} && nsenter --target "$machine" --user --preserve-credentials --pid --mount '
    'tar -cC /var/tmp . > "$saved"; sleep 0.2'
)
_RESTORE = (
    f"saved=$0/$2; {_CREATE}; until {_FIND.replace(' && shift', '')} && "
    'nsenter --target "$machine" --user --preserve-credentials --pid --mount test -e /tmp/up; do sleep 0.05; done; '
    'nsenter --target "$machine" --user --preserve-credentials --pid --mount tar -xC /var/tmp < "$saved"'
)
_DISCARD = '[ ! -e "$0/$1" ] || { sleep 0.2; rm "$0/$1"; }'


def slow_machine(folder: Path) -> Path:
    """The definition of a machine of one's own; the files in `folder/machines` stand for those that exist."""
    machines = folder / "machines"
    machines.mkdir()
    file = folder / "storm.toml"
    commands = {"create": _CREATE, "ready": f"{_ENTER} test -e /tmp/up", "exec": _ENTER, "destroy": _DESTROY}
    saving: dict[str, tuple[str, tuple[str, ...]]] = {
        "snapshot": (_SAVE, ("id", "snapshot")),
        "restore": (_RESTORE, ("id", "snapshot")),
    }
    saving["discard"] = (_DISCARD, ("snapshot",))
    lines = ['name = "storm"', f"list = {quoted(f'ls {machines}')}"]
    for key, text in commands.items():
        more = ', "{command}"' if key == "exec" else ""
        lines.append(f'{key} = ["sh", "-c", {quoted(text)}, {quoted(str(machines))}, "{{id}}"{more}]')
    for key, (text, placeholders) in saving.items():
        given = ", ".join(f'"{{{name}}}"' for name in placeholders)
        lines.append(f'{key} = ["sh", "-c", {quoted(text)}, {quoted(str(machines))}, {given}]')
    file.write_text("\n".join([*lines, 'env = { STORM_TOKEN = "not-a-secret" }', ""]))
    return file
