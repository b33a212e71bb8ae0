"""`guestmark fleet doctor`: what the machines of a lab can measure, and what keeps them from doing it together."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from guestmark.cli.fleets import Outputs, too_little_room
from guestmark.cli.say import say, tell, tell_json
from guestmark.core.errors import ExitStatus, GuestmarkError
from guestmark.page.text import inert

if TYPE_CHECKING:
    from guestmark.fleet.lab import Member

_DOCTOR_S = 120.0


def doctor(machines: str, ledger_path: str | None, outputs: Outputs) -> int:
    """Asks all machines at once what they can measure, and the ledger's server for room; the exit status."""
    from guestmark.fleet import lab

    members = lab.read(machines)
    if not outputs.quiet:
        say(f"asking {len(members)} machines at once, {_DOCTOR_S:.0f} s at most …")
    with ThreadPoolExecutor(min(len(members), 32)) as pool:
        answers = dict(zip((member.name for member in members), pool.map(_asked, members), strict=True))
    differences = _differences(members, answers)
    ledger = _ledger(ledger_path, members)
    if outputs.json is not None:
        document = {"machines": answers, "differences": differences, "ledger": ledger}
        tell_json(json.dumps(document, indent=2, ensure_ascii=False))
    else:
        for member in members:
            answer = answers[member.name]
            tell(f"{member.name}{f' (class {member.kind})' if member.kind else ''}")
            if "error" in answer:
                tell(f"  cannot be used: {answer['error']}")
                continue
            usable = [each["name"] for each in answer["platforms"] if each["usable"]]
            tell(f"  platforms: {', '.join(usable) or 'none'}")
            for each in differences.get(member.name, ()):
                tell(f"  differs from its class: {each}")
        tell("ledger")
        for line in (ledger.get("error") or _fine(ledger)).split("\n"):
            tell(f"  {line}")
    wrong = "error" in ledger or any("error" in each for each in answers.values())
    return int(ExitStatus.SOME_FAILED if wrong else ExitStatus.ALL_MEASURED)


def _ledger(path: str | None, members: Sequence[Member]) -> dict[str, Any]:
    """What `fleet run` would find: the connections that its server has for these machines, or an `error`."""
    from guestmark.ledger import default_path, open_ledger
    from guestmark.ledger.room import room_for

    where = path or str(default_path())
    if "://" not in where:
        if any(member.ssh for member in members):
            return {"error": f"{where} is a file, which other machines do not reach\n"
                    "--ledger postgresql://… names one that they do"}  # fmt: skip
        return {"file": where}
    try:
        with open_ledger(where, writable=False) as ledger:
            ledger.patience.patience_s = 0.0
            room = room_for(ledger, len(members))
    except GuestmarkError as error:
        return {"error": "\n".join(line for line in (error.message, error.hint) if line)}
    if room is None:
        return {"file": where}
    found: dict[str, Any] = {"max_connections": room.most, "free": room.free, "needed": room.needed}
    return found if room.is_enough else {**found, "error": "\n".join(too_little_room(room, len(members)))}


def _fine(ledger: Mapping[str, Any]) -> str:
    if "file" in ledger:
        return f"{ledger['file']}, which this machine reaches alone"
    return f"its server has {ledger['free']} connections left, and {ledger['needed']} are needed"


def _asked(member: Member) -> dict[str, Any]:
    from guestmark.fleet.links import command

    try:
        done = subprocess.run(
            command(member, ["doctor", "--json"]),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_DOCTOR_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"error": "it did not answer in time"}
    except OSError as error:
        return {"error": f"{member.command[0]}: {error.strerror}"}
    try:
        answer: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        lines = [line for line in done.stderr.decode(errors="replace").splitlines() if line.strip()]
        return {"error": inert(lines[-1])[:300] if lines else f"status {done.returncode}"}
    if not isinstance(answer, dict) or not isinstance(answer.get("platforms"), list):
        return {"error": "its guestmark answers something else; are the versions alike?"}
    return answer


def _differences(members: Sequence[Member], answers: Mapping[str, Any]) -> dict[str, list[str]]:
    """By machine what of its surroundings differs from those of the first of its class."""
    from guestmark.stats.conditions.surroundings import changes

    found: dict[str, list[str]] = {}
    first: dict[str, Mapping[str, Any]] = {}
    for member in members:
        host = answers[member.name].get("host")
        if not member.kind or not isinstance(host, dict):
            continue
        if member.kind not in first:
            first[member.kind] = host
            continue
        try:
            decisive, _ = changes(first[member.kind], host)
        except (GuestmarkError, KeyError, TypeError, ValueError):
            decisive = {"answer": "cannot be compared"}
        if decisive:
            found[member.name] = [f"{what} {said}" for what, said in decisive.items()]
    return found
