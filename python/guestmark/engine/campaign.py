"""A campaign: one plan is measured in every boot of a host, which boots as one side or the other.

Its state is in a file that is on disk before the host restarts, so the user or a systemd unit can continue it from
wherever it stopped, even after a power cut.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import platform
import re
import secrets
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import Enum, auto
from pathlib import Path
from typing import Any

from guestmark.agent.clocks import read_host_boot_id
from guestmark.core.errors import GuestmarkError, UsageError
from guestmark.core.home import find_home_directory, find_state_directory
from guestmark.core.model import Plan, RunState
from guestmark.core.redaction import drop_password
from guestmark.core.temporary import replace_file
from guestmark.engine.audience import Audience
from guestmark.engine.run import Run, RunOptions, prepare_run
from guestmark.ledger import codec, open_ledger
from guestmark.ledger.environment_variables import restore_values, strip_unrecorded
from guestmark.ledger.run_annotations import Annotations
from guestmark.ledger.store import Ledger
from guestmark.stats.across_runs import alternate_sides

_PLACEHOLDER = "{side}"
# The variable that names the side to the user's commands.
_VARIABLE = "GUESTMARK_SIDE"
_PLAIN_WORD = re.compile(r"[A-Za-z0-9_.,:/@%+=][A-Za-z0-9_.,:/@%+=-]*", re.ASCII)  # one word for every shell
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", re.ASCII)
_SCHEMA = "guestmark-campaign/1"


@dataclass(frozen=True, slots=True)
class MeasuredBoot:
    """One boot that has been measured: its side, the boot's id, and the run that measured it."""

    side: str
    boot_id: str
    # With `in_place`: the number of restarts since the campaign began.
    restarts: int
    run: str
    kernel: str

    @property
    def key(self) -> tuple[str, int]:
        """The identity of a boot: the host's boot id, and `restarts`."""
        return self.boot_id, self.restarts


@dataclass(frozen=True, slots=True)
class SideCommands:
    """The user's shell commands. `{side}` stands for the side, which is also in `$GUESTMARK_SIDE`.

    `switch` selects the side for the next boot, `verify` succeeds if the host runs as that side, `restart` restarts the
    host; if it is empty, the user does. With `in_place` it restarts something else, and returns when that is done.
    """

    switch: str = ""
    verify: str = ""
    restart: str = ""
    in_place: bool = False

    def check(self, sides: Sequence[str]) -> None:
        """Raise `UsageError` for a side that a shell would read as more than one plain word."""
        for command in (self.switch, self.verify, self.restart):
            for side in sides:
                substitute_side(command, side)


def substitute_side(command: str, side: str) -> str:
    """Return the command with the side in place of `{side}`. Raises `UsageError` if that could run something else.

    Quotes are not enough: with a command such as `ssh lab1 'grub-reboot {side}'` a second shell reads the word.
    """
    if _PLACEHOLDER in command and not _PLAIN_WORD.fullmatch(side):
        raise UsageError(
            f"the side {side!r} cannot stand for {_PLACEHOLDER} in {command!r}: a shell would read it as code",
            hint=f'use letters, digits and ._:/@%+=,- for sides, or "${_VARIABLE}" in the command',
        )
    return command.replace(_PLACEHOLDER, side)


@dataclass(frozen=True, slots=True)
class CampaignState:
    """A campaign as it is stored. `order` names the side of each boot.

    `switched` holds the index of the boot for which the side was switched, then the key of the boot in which that was
    done. `current` holds the run in progress, then the key of its boot.
    """

    name: str
    plan: str  # encoded as in a ledger
    ledger: str
    cwd: str
    sides: tuple[str, str]
    order: tuple[str, ...]
    commands: SideCommands
    done: tuple[MeasuredBoot, ...] = ()
    restarts: int = 0
    switched: tuple[int, str, int] | None = None
    current: tuple[str, str, int] | None = None

    @property
    def next_side(self) -> str | None:
        """The side of the next boot to measure; None at the end."""
        if len(self.done) >= len(self.order):
            return None
        return self.order[len(self.done)]

    @property
    def key(self) -> tuple[str, int]:
        """The key of the boot that the host is in."""
        return read_host_boot_id(), self.restarts

    @property
    def is_fresh(self) -> bool:
        """Whether this boot can be the next one: nothing was measured in it, and the side was switched before it."""
        if any(boot.key == self.key for boot in self.done):
            return False
        if not self.commands.switch:
            return True
        if self.switched is None:
            return not self.done and bool(self.commands.verify)
        return self.switched[0] == len(self.done) and self.switched[1:] != self.key


def find_campaigns_directory() -> Path:
    """Return the directory of campaign files."""
    return find_state_directory() / "campaigns"


def list_campaigns() -> list[str]:
    """Return the names of stored campaigns."""
    return sorted(file.stem for file in find_campaigns_directory().glob("*.json"))


class CampaignPause(Enum):
    """Why a campaign does not continue now."""

    DONE = auto()
    # The host has to be restarted, or is restarting.
    RESTARTS = auto()
    INTERRUPTED = auto()


class Campaign:
    """One campaign, which a single process at a time continues."""

    def __init__(self, name: str, state: CampaignState | None = None) -> None:
        if not _NAME.fullmatch(name):
            raise UsageError(f"{name!r} cannot be a campaign's name", hint="use letters, digits, . _ and -")
        self._path = find_campaigns_directory() / f"{name}.json"
        self._state = state

    @property
    def exists(self) -> bool:
        """Whether the campaign has begun."""
        return self._path.exists()

    @property
    def path(self) -> Path:
        """The campaign's file."""
        return self._path

    @property
    def state(self) -> CampaignState:
        """The progress so far. Raises `UsageError` if there is no such campaign or its file is damaged."""
        if self._state is None:
            self._state = _read_state(self._path)
        return self._state

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Keep other processes from continuing the campaign. Raises `UsageError` if one does already."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with open(self._path.with_suffix(".lock"), "w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise UsageError(
                    f"another process is running campaign {self._path.stem}", hint="wait for it to end"
                ) from error
            yield

    def store(self, **changes: Any) -> CampaignState:
        """Store the state with these changes; it is on disk when this returns."""
        self._state = replace(self.state, **changes)
        # Only its user may read the file: it holds command lines and variables.
        with replace_file(self._path) as part, part.open("w") as stream:
            json.dump({"schema": _SCHEMA, **asdict(self._state)}, stream, indent=1)
            stream.flush()
            os.fsync(stream.fileno())
        folder = os.open(self._path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        return self._state

    def remove(self) -> None:
        """Delete the campaign's file; its runs stay in the ledger."""
        self._path.unlink(missing_ok=True)
        self._path.with_suffix(".lock").unlink(missing_ok=True)

    def begin(self, plan: Plan, commands: SideCommands, *, sides: str, rounds: int, ledger: str) -> None:
        """Store a new campaign: `sides` are two names separated by a comma; each round is four boots.

        Raises `UsageError` for anything but two sides, and for sides that a command cannot take.
        """
        both = [side.strip() for side in sides.split(",")]
        if len(both) != 2 or both[0] == both[1] or not all(both):
            raise UsageError(f"--sides {sides!r} does not name two sides", hint="e.g. --sides 6.1,6.12")
        commands.check(both)
        named = dict(zip("AB", both, strict=True))
        self._state = CampaignState(
            name=self._path.stem,
            plan=codec.dump_json(replace(plan, context=strip_unrecorded(plan.context))),
            ledger=drop_password(ledger) if "://" in ledger else ledger,
            cwd=plan.context.cwd,
            sides=(both[0], both[1]),
            order=tuple(named[letter] for letter in alternate_sides(rounds)),
            commands=commands,
        )
        self.store()

    def measure_boot(self, side: str, ledger: Ledger, audience: Audience) -> RunState:
        """Measure in the current boot of the host, from where this was stopped; return the state of its run.

        Raises `GuestmarkError` if nothing could be measured.
        """
        state, key = self.state, self.state.key
        if state.current is not None and state.current[1:] == key:
            run_id = state.current[0]
            plan = restore_values(ledger.load_run(run_id).plan, os.environ)[0]
            run = Run(run_id, plan, ledger, audience)
        else:
            plan = restore_values(codec.load_json(state.plan, Plan, f"campaign {state.name}"), os.environ)[0]
            context = replace(plan.context, boot_id=key[0], restarts=key[1])
            plan = replace(plan, context=context, policy=replace(plan.policy, seed=secrets.randbits(32)))
            labels = {"campaign": state.name, "side": side, "boot": str(len(state.done) + 1)}
            run = prepare_run(plan, ledger, audience, RunOptions(said=Annotations(labels=labels)))
            self.store(current=(run.id, *key))
        ended = run.measure()
        if ended is RunState.FAILED or (ended is RunState.STOPPED and not ledger.load_run(run.id).trials):
            raise GuestmarkError(
                f"nothing could be measured in this boot: run {run.id}",
                hint=f"guestmark show {run.id} shows why",
            )
        if ended is not RunState.INTERRUPTED:
            boot = MeasuredBoot(side, key[0], key[1], run.id, platform.release())
            self.store(done=(*state.done, boot), current=None)
        return ended

    def continue_campaign(self, ledger: str | None, audience: Audience) -> CampaignPause:
        """Measure and restart until the campaign is done, the host has to restart, or a signal interrupts.

        Runs go to `ledger` if the campaign has no ledger of its own. Raises `GuestmarkError` if nothing could be
        measured, or one of the user's commands failed.
        """
        while (side := self.state.next_side) is not None:
            state = self.state
            number = f"boot {len(state.done) + 1} of {len(state.order)}"
            if state.is_fresh and self.is_side(side):
                audience.tell(f"{number}: {side}")
                with open_ledger(_choose_ledger(state.ledger, ledger)) as opened:
                    if self.measure_boot(side, opened, audience) is RunState.INTERRUPTED:
                        return CampaignPause.INTERRUPTED
                continue
            self.switch_side(side)
            if not state.commands.restart:
                audience.tell(
                    f"{number} is {side}: restart the host as {side}, then type: "
                    f"guestmark campaign {state.name}"
                )
                return CampaignPause.RESTARTS
            audience.tell(f"{number} is {side}: restarting")
            if not self.restart_host():
                return CampaignPause.RESTARTS
            if not self.is_side(side):
                raise GuestmarkError(
                    f"after --reboot-command, --verify fails for {side}: {state.commands.verify}",
                    hint="run the commands of --switch and --verify yourself to see why",
                )
        return CampaignPause.DONE

    def is_side(self, side: str) -> bool:
        """Return whether the host runs as that side, as far as the user's command can tell."""
        return not self.state.commands.verify or self._run_command("verify", side) == 0

    def switch_side(self, side: str) -> None:
        """Select the side for the next boot, and store this. Raises `GuestmarkError` if it fails."""
        if self.state.commands.switch:
            if status := self._run_command("switch", side):
                raise GuestmarkError(
                    f"--switch failed with exit status {status}: {self._fill_command('switch', side)}",
                    hint=f"fix it, then type: guestmark campaign {self.state.name}",
                )
            self.store(switched=(len(self.state.done), *self.state.key))

    def restart_host(self) -> bool:
        """Restart the host, or with `in_place` something else; return whether that is done. Raises `GuestmarkError`."""
        if status := self._run_command("restart", self.state.next_side or ""):
            raise GuestmarkError(
                f"--reboot-command failed with exit status {status}",
                hint=f"restart the host yourself, then type: guestmark campaign {self.state.name}",
            )
        if self.state.commands.in_place:
            self.store(restarts=self.state.restarts + 1)
        return self.state.commands.in_place

    def _fill_command(self, which: str, side: str) -> str:
        text: str = getattr(self.state.commands, which)
        return substitute_side(text, side)

    def _run_command(self, which: str, side: str) -> int:
        return subprocess.run(
            ["/bin/sh", "-c", self._fill_command(which, side)],
            cwd=self.state.cwd,
            env={**os.environ, _VARIABLE: side},
            stdin=subprocess.DEVNULL,
            check=False,
        ).returncode


def _choose_ledger(stored: str, given: str | None) -> str | None:
    """Return the campaign's ledger; the one given now if it is the same with its password, which is not stored."""
    is_same = given is not None and "://" in given and drop_password(given) == stored
    return given if is_same or not stored else stored


def _read_state(path: Path) -> CampaignState:
    try:
        found: Mapping[str, Any] = json.loads(path.read_text())
    except FileNotFoundError as error:
        hint = "to begin one: guestmark campaign --help"
        if known := list_campaigns():
            hint = f"known campaigns: {', '.join(known)}"
        raise UsageError(f"there is no campaign {path.stem}", hint=hint) from error
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be read: {error}", hint="remove it to start again") from error
    try:
        return CampaignState(
            name=found["name"],
            plan=found["plan"],
            ledger=found["ledger"],
            cwd=found["cwd"],
            sides=_read_sides(found["sides"]),
            order=tuple(found["order"]),
            commands=SideCommands(**found["commands"]),
            done=tuple(MeasuredBoot(**boot) for boot in found["done"]),
            restarts=found["restarts"],
            switched=_read_boot_key(found["switched"], int, str),
            current=_read_boot_key(found["current"], str, str),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(f"{path} is not a campaign of this version: {error}") from error


def _read_sides(values: Sequence[str]) -> tuple[str, str]:
    first, second = values
    return first, second


def _read_boot_key(values: Sequence[Any] | None, first: type, second: type) -> Any:
    if values is None:
        return None
    return first(values[0]), second(values[1]), int(values[2])


def _quote_unit_word(word: str) -> str:
    """Return the word quoted for a systemd unit, in which percent signs begin specifiers."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{escaped}"'


def make_systemd_unit(state: CampaignState, command: Sequence[str]) -> str:
    """Return a systemd unit that continues the campaign after every boot of the host, until it is done."""
    words = " ".join(map(_quote_unit_word, command))
    kept = find_campaigns_directory() / f"{state.name}.json"
    return f"""[Unit]
Description=guestmark campaign {state.name}
Wants=network-online.target
After=network-online.target local-fs.target
ConditionPathExists={kept}

[Service]
Type=exec
User={os.getuid()}
WorkingDirectory={state.cwd}
Environment="HOME={find_home_directory()}" "PATH={os.environ.get("PATH", os.defpath)}"
ExecStart={words}
KillMode=mixed

[Install]
WantedBy=multi-user.target
"""
