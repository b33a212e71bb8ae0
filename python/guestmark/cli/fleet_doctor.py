"""`guestmark fleet doctor`: what the machines of a lab can measure, and what keeps them from doing it together."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from guestmark.cli.fleets import Outputs, too_little_room
from guestmark.core.errors import ExitStatus, GuestmarkError
from guestmark.core.units import counted
from guestmark.page.say import say, tell, tell_json
from guestmark.page.text import inert, last_line

if TYPE_CHECKING:
    from guestmark.fleet.lab import Member

_DOCTOR_S = 120.0
_BLOCKS = 24  # of the example that shows the cost of sharing
_FACTS = frozenset({"processor", "memory", "kernel", "system"})


def doctor(machines: str, ledger_path: str | None, outputs: Outputs) -> int:
    """Asks all machines at once what they can measure, and the ledger's server for room; the exit status."""
    from guestmark.fleet import lab

    members = lab.read(machines)
    if not outputs.quiet:
        say(f"asking {counted(len(members), 'machine')} at once, {_DOCTOR_S:.0f} s at most …")
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
            for text in _lines(answer):
                tell(f"  {text}")
            for each in differences.get(member.name, ()):
                tell(f"  differs from its class: {each}")
        for line in _shares(members, answers, differences):
            tell(line)
        tell("ledger")
        for line in (ledger.get("error") or _fine(ledger)).split("\n"):
            tell(f"  {line}")
    wrong = "error" in ledger or any("error" in each for each in answers.values())
    return int(ExitStatus.SOME_FAILED if wrong else ExitStatus.ALL_MEASURED)


def _shares(
    members: Sequence[Member], answers: Mapping[str, Any], differences: Mapping[str, Sequence[str]]
) -> list[str]:
    """Of each class which machines are alike, and what it means that they share a plan."""
    from guestmark.stats.machines import sharing_cost_factor

    lines = []
    for kind in dict.fromkeys(member.kind for member in members if member.kind):
        able = [each.name for each in members if each.kind == kind and "error" not in answers[each.name]]
        alike = [name for name in able if name not in differences]
        lines.append(f"class {kind}")
        if len(able) < 2:
            lines.append("  shares nothing: that takes two machines that can be used")
            continue
        others = ", ".join(name for name in able if name in differences)
        lines.append(f"  alike: {', '.join(alike)}" + (f"; not alike, see above: {others}" if others else ""))
        if others:
            lines.append("  what they share would be of two systems: give them another class, or use --whole")
        factor = sharing_cost_factor(len(able), _BLOCKS)
        lines.append(
            f"  {len(able)} machines share {_BLOCKS} blocks in about 1/{len(able)} of the time, with intervals up to "
            f"{factor:.1f} times as wide as one machine's, or wider where their ratios differ"
        )
    return lines


def _ledger(path: str | None, members: Sequence[Member]) -> dict[str, Any]:
    """What `fleet run` would find: the connections that its server has for these machines, or an `error`."""
    from guestmark.ledger import default_path, open_ledger
    from guestmark.ledger.postgres import room_for

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
    from guestmark.fleet import parsl_engine
    from guestmark.fleet.worker_connection import command

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
    except (ValueError, RecursionError):
        return {"error": last_line(done.stderr.decode(errors="replace")) or f"status {done.returncode}"}
    try:
        if wrong := parsl_engine.mismatch(member.name, answer["fleet"], parsl_engine.versions()):
            return {"error": f"{inert(wrong)}; {parsl_engine.INSTALL_ALIKE}"}
        _lines(answer)
    except (AttributeError, KeyError, TypeError, ValueError):  # nothing that comes from elsewhere is trusted
        return {"error": f"its guestmark answers something else; {parsl_engine.INSTALL_ALIKE}"}
    return answer


def _lines(answer: Mapping[str, Any]) -> list[str]:
    """What a person wants to know of a machine: its platforms, what it is, and versions of what measures there."""
    from guestmark.cli.doctor_verb import facts_of

    platforms = answer["platforms"]
    usable = ", ".join(each["name"] for each in platforms if each["usable"]) or "none"
    others = [each for each in platforms if not each["usable"]]
    found = {name: str(said) for name, said in {**answer["fleet"], **answer["tools"]}.items() if said}
    numbers = {name: re.search(r"\d+(?:\.\d+)+", said) for name, said in found.items()}
    lines = (
        f"platforms: {usable}",
        *(
            f"{'not' if each['usable'] is False else 'unknown'} {each['name']}: {' '.join(str(each['reason']).split())}"
            for each in others
        ),
        "; ".join(value for label, value in facts_of(answer["host"]) if label in _FACTS),
        ", ".join(f"{name} {number[0]}" for name, number in numbers.items() if number),
    )
    return [inert(line) for line in lines]


def _differences(members: Sequence[Member], answers: Mapping[str, Any]) -> dict[str, list[str]]:
    """By machine what of its surroundings differs from those of the first of its class."""
    from guestmark.stats.conditions.surroundings import compare_environments

    found: dict[str, list[str]] = {}
    first: dict[str, Mapping[str, Any]] = {}
    for member in members:
        answer = answers[member.name]
        if not member.kind or "error" in answer:
            continue
        host = {**answer["host"], "programs": answer["tools"]}
        if member.kind not in first:
            first[member.kind] = host
            continue
        try:
            decisive, _ = compare_environments(first[member.kind], host)
        except (GuestmarkError, KeyError, TypeError, ValueError):
            decisive = {"answer": "cannot be compared"}
        if decisive:
            found[member.name] = [f"{what} {said}" for what, said in decisive.items()]
    return found
