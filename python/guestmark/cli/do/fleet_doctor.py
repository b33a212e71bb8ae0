"""Finds out what the machines of a lab can measure, and what prevents them from measuring together."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from guestmark.cli.do.doctor import list_facts
from guestmark.core.errors import ExitStatus, GuestmarkError
from guestmark.core.units import format_count
from guestmark.fleet import lab, parsl_engine
from guestmark.fleet.lab import LabMachine
from guestmark.fleet.worker_connection import make_remote_command
from guestmark.ledger import find_default_ledger, open_ledger
from guestmark.ledger.postgres import ConnectionRoom, find_connection_room
from guestmark.page.say import say, tell, tell_json
from guestmark.page.text import last_inert_line, make_inert
from guestmark.stats.conditions.surroundings import compare_environments
from guestmark.stats.machines import compute_sharing_cost_factor

# Time limit for a machine's answer; it boots a guest on each platform.
_DOCTOR_S = 120.0
# Machines that are asked at the same time.
_MOST_AT_ONCE = 32
# Blocks of the example that shows what sharing a plan costs.
_EXAMPLE_BLOCKS = 24
_FACTS = frozenset({"processor", "memory", "kernel", "system"})


def examine_lab(machines: str, ledger_path: str | None, *, json_wanted: bool, quiet: bool) -> int:
    """Asks all machines at once what they can measure, and the ledger's server for room; returns the exit status."""
    members = lab.read_lab(machines)
    if not quiet:
        say(f"asking {format_count(len(members), 'machine')} at once, {_DOCTOR_S:.0f} s at most …")
    names = [member.name for member in members]
    with ThreadPoolExecutor(min(len(members), _MOST_AT_ONCE)) as pool:
        answers = dict(zip(names, pool.map(_ask_machine, members), strict=True))
    differences = _find_class_differences(members, answers)
    ledger = _examine_ledger(ledger_path, members)
    if json_wanted:
        document = {"machines": answers, "differences": differences, "ledger": ledger}
        tell_json(json.dumps(document, indent=2, ensure_ascii=False))
    else:
        _print_findings(members, answers, differences, ledger)
    failed = "error" in ledger or any("error" in answer for answer in answers.values())
    return ExitStatus.SOME_FAILED if failed else ExitStatus.ALL_MEASURED


def _print_findings(
    members: Sequence[LabMachine],
    answers: Mapping[str, Any],
    differences: Mapping[str, Sequence[str]],
    ledger: Mapping[str, Any],
) -> None:
    for member in members:
        answer = answers[member.name]
        heading = member.name
        if member.kind:
            heading += f" (class {member.kind})"
        tell(heading)
        if "error" in answer:
            tell(f"  cannot be used: {answer['error']}")
            continue
        for line in _describe_machine(answer):
            tell(f"  {line}")
        for difference in differences.get(member.name, ()):
            tell(f"  differs from the first of its class: {difference}")
    for line in _describe_classes(members, answers, differences):
        tell(line)
    tell("ledger")
    for line in (ledger.get("error") or _describe_ledger(ledger)).split("\n"):
        tell(f"  {line}")


def _describe_classes(
    members: Sequence[LabMachine], answers: Mapping[str, Any], differences: Mapping[str, Sequence[str]]
) -> list[str]:
    """Describes for each class which machines are alike, and what sharing a plan costs them."""
    names_by_class: dict[str, list[str]] = {}
    for member in members:
        if member.kind:
            names_by_class.setdefault(member.kind, []).append(member.name)
    lines = []
    for kind, of_class in names_by_class.items():
        usable = [name for name in of_class if "error" not in answers[name]]
        alike = [name for name in usable if name not in differences]
        lines.append(f"class {kind}")
        if len(usable) < 2:
            lines.append("  cannot share a run: that takes at least two usable machines")
            continue
        others = ", ".join(name for name in usable if name in differences)
        lines.append(f"  alike: {', '.join(alike)}")
        if others:
            lines[-1] += f"; different (see above): {others}"
            lines.append(
                "  a run shared by these machines would mix two systems: put them into separate classes, or use --whole"
            )
        factor = compute_sharing_cost_factor(len(usable), _EXAMPLE_BLOCKS)
        lines.append(
            f"  {len(usable)} machines share {_EXAMPLE_BLOCKS} blocks in about 1/{len(usable)} of the time, with "
            f"intervals up to {factor:.1f} times as wide as one machine's, or wider if their ratios differ"
        )
    return lines


def _examine_ledger(path: str | None, members: Sequence[LabMachine]) -> dict[str, Any]:
    """Finds out what `fleet run` would find: the connections that the server has for these machines, or an `error`."""
    where = path or str(find_default_ledger())
    if "://" not in where:
        if any(member.ssh for member in members):
            return {
                "error": f"{where} is a file, which other machines cannot reach\n"
                "use a server that they can reach: --ledger postgresql://…"
            }
        return {"file": where}
    try:
        with open_ledger(where, writable=False) as ledger:
            # A run waits for an unreachable server, but a doctor reports it.
            ledger.patience.patience_s = 0.0
            room = find_connection_room(ledger, len(members))
    except GuestmarkError as error:
        return {"error": "\n".join(filter(None, (error.message, error.hint)))}
    if room is None:
        return {"file": where}
    found: dict[str, Any] = {"max_connections": room.most, "free": room.free, "needed": room.needed}
    if not room.is_enough:
        found["error"] = "\n".join(explain_missing_room(room, len(members)))
    return found


def explain_missing_room(room: ConnectionRoom, machines: int) -> tuple[str, str]:
    """Explains that a ledger's server takes fewer connections than a fleet needs: what is wrong, and what to do."""
    count = "1 machine needs" if machines == 1 else f"{machines} machines need"
    return (
        f"the ledger's server has {room.free} of {room.most} connections left, and {count} {room.needed}",
        f"set max_connections = {room.advised} in its postgresql.conf and restart it",
    )


def _describe_ledger(ledger: Mapping[str, Any]) -> str:
    if "file" in ledger:
        return f"{ledger['file']}, which only this machine can reach"
    return f"its server has {ledger['free']} connections left, and {ledger['needed']} are needed"


def _ask_machine(member: LabMachine) -> dict[str, Any]:
    """Returns the answer of `doctor --json` there, or an `error`. Nothing in an answer is trusted."""
    try:
        done = subprocess.run(
            make_remote_command(member, ["doctor", "--json"]),
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
        return {"error": last_inert_line(done.stderr.decode(errors="replace")) or f"status {done.returncode}"}
    try:
        mismatch = parsl_engine.describe_version_mismatch(
            member.name, answer["fleet"], parsl_engine.read_versions()
        )
        if mismatch:
            return {"error": f"{make_inert(mismatch)}; {parsl_engine.INSTALL_ALIKE}"}
        # An answer that could not be described later is refused now.
        _describe_machine(answer)
    except (AttributeError, KeyError, TypeError, ValueError):
        return {"error": f"its guestmark gave an unexpected answer; {parsl_engine.INSTALL_ALIKE}"}
    return answer


def _describe_machine(answer: Mapping[str, Any]) -> list[str]:
    """Lists a machine's platforms, its hardware and system, and the versions of the programs that measure there."""
    platforms = answer["platforms"]
    usable = ", ".join(platform["name"] for platform in platforms if platform["usable"]) or "none"
    lines = [f"platforms: {usable}"]
    for platform in platforms:
        if not platform["usable"]:
            word = "unusable" if platform["usable"] is False else "unknown"
            lines.append(f"{word}: {platform['name']}, {' '.join(str(platform['reason']).split())}")
    lines.append("; ".join(value for label, value in list_facts(answer["host"]) if label in _FACTS))
    versions = []
    for name, text in {**answer["fleet"], **answer["tools"]}.items():
        # Programs print their versions in many formats; the first number with a dot is the relevant part.
        number = re.search(r"\d+(?:\.\d+)+", str(text or ""))
        if number:
            versions.append(f"{name} {number[0]}")
    lines.append(", ".join(versions))
    return [make_inert(line) for line in lines]


def _find_class_differences(
    members: Sequence[LabMachine], answers: Mapping[str, Any]
) -> dict[str, list[str]]:
    """Finds, for each machine, how its surroundings differ from those of the first machine of its class."""
    found: dict[str, list[str]] = {}
    first_of_class: dict[str, Mapping[str, Any]] = {}
    for member in members:
        answer = answers[member.name]
        if not member.kind or "error" in answer:
            continue
        host = {**answer["host"], "programs": answer["tools"]}
        if member.kind not in first_of_class:
            first_of_class[member.kind] = host
            continue
        try:
            decisive, _ = compare_environments(first_of_class[member.kind], host)
        except (GuestmarkError, KeyError, TypeError, ValueError):
            decisive = {"answer": "cannot be compared"}
        if decisive:
            found[member.name] = [f"{what} {change}" for what, change in decisive.items()]
    return found
