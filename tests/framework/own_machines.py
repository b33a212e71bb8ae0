"""Definitions of the user's own machines that need nothing installed: namespaces of this host, each with a folder."""

from __future__ import annotations

from pathlib import Path

# A process that only waits stands for the machine; whoever enters its namespaces is in the machine. The folder /root is
# a filesystem of its own there, so that nothing of one machine is seen in another.
CREATE = (
    "setsid unshare --fork --pid --kill-child --mount --uts --mount-proc "
    'sh -c "mount -t tmpfs none /tmp && mount -t tmpfs none /var/tmp && touch /tmp/up && exec sleep infinity" '
    '> /dev/null 2>&1 < /dev/null & echo $! > "$0/$1"'
)
# The process inside the machine is the child of `unshare`.
PID = 'cat /proc/$(cat "$0/$1")/task/*/children | cut -d" " -f1 | grep .'
ENTER = f'machine=$({PID}) && shift && exec nsenter --all --target "$machine" "$@"'
READY = f"nsenter --all --target $({PID}) test -e /tmp/up"
# When a run is killed while it creates a machine, the processes end too, but the file with their id remains.
DESTROY = '{ kill -KILL $(cat "$0/$1"); rm "$0/$1"; } 2> /dev/null'

# Only the files of /var/tmp are saved: programs of the machine do not continue.
SAVE = f'saved="$0/../saved/$2"; machine=$({PID}) && nsenter --all --target "$machine" tar -cC /var/tmp . > "$saved"'
RESTORE = (
    f'saved="$0/../saved/$2"; {CREATE}; until {READY}; do sleep 0.02; done; '
    f'machine=$({PID}) && exec nsenter --all --target "$machine" tar -xC /var/tmp < "$saved"'
)
DISCARD = 'rm "$0/../saved/$1"'


def own_machine(folder: Path, name: str = "cell", **changes: str) -> Path:
    """Write the definition of such machines, whose process ids are kept in `folder`.

    `changes` replace lines by TOML; an empty text leaves a line out.
    """
    machines = folder / "machines"
    machines.mkdir(exist_ok=True)
    lines = {
        "name": f'"{name}"',
        "create": script(folder, CREATE),
        "ready": script(folder, READY),
        "exec": script(folder, ENTER, "{command}"),
        "destroy": script(folder, DESTROY),
        "list": words("ls", str(machines)),
        "pid": script(folder, PID),
        **changes,
    }
    path = folder / f"{name}.toml"
    path.write_text("".join(f"{key} = {value}\n" for key, value in lines.items() if value))
    return path


def saving(folder: Path, **changes: str) -> dict[str, str]:
    """Return the commands that save and restore such machines; `changes` are scripts that replace some of them."""
    (folder / "saved").mkdir(exist_ok=True)
    scripts = {"snapshot": SAVE, "restore": RESTORE, **changes}
    commands = {key: script(folder, text, "{snapshot}") for key, text in scripts.items()}
    return {**commands, "discard": words("sh", "-c", DISCARD, str(folder / "machines"), "{snapshot}")}


def script(folder: Path, text: str, *more: str) -> str:
    """Return a command of a definition as TOML: a shell script with the folder as $0 and the machine's id as $1."""
    return words("sh", "-c", text, str(folder / "machines"), "{id}", *more)


def words(*each: str) -> str:
    """Return a list of words as TOML."""
    return "[" + ", ".join(quoted(word) for word in each) + "]"


def quoted(text: str) -> str:
    """Return a string as TOML."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
