"""Why something failed is a `Cause`, and nothing is decided on the words of a message."""

import json
from pathlib import Path

import pytest

from guestmark.core.cause import Cause, Speaker, classify_message
from guestmark.core.model import Trial, TrialStatus
from guestmark.ledger import open_ledger
from guestmark.ledger.codec import pack_trial, unpack_trial
from guestmark.report.document import make_result_document
from guestmark.stats.analysis import analyse_run
from tests.framework import recorded
from tools import decisions as tool


def test_nothing_in_the_package_decides_on_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert tool.main() == 0, capsys.readouterr().out


@pytest.mark.parametrize(
    "planted",
    [
        'def f(error): return "guest" in error.message',
        "def f(trial): return trial.reason.startswith(FAILED)",
        'def f(message): return message == "it is late"',
        "def f(finding): return any(mark in finding.reason for mark in PASSING)",
        'def f(self): return 1 if "strace" in self.why else 2',
        "def f(done): return PATTERN.search(done.stderr.decode())",
        "def f(error): return re.match('x', error.message)",
        "def f(error):\n    said = error.message.strip()\n    return said.endswith('gone')",
        "def f():\n    try: g()\n    except OSError as error: return 'SSL' in str(error)",
        "def f():\n    try: g()\n    except OSError as error: return error.args[0] == 'x'",
        "def f(trial): return {'late': 1}[trial.reason]",
        "def f(trial): return {'late': 1}.get(trial.reason)",
        "def f(error):\n    match error.message:\n        case 'late': return 1",
        "def f(error): return [word for word in error.message.split() if word == 'late']",
        "def f(error): return WorkloadError(f'--setup: {error.message}', hint=error.hint)",
        "def f(error): return (said := error.message) and said.startswith('x')",
    ],
)
def test_a_planted_decision_is_found(planted: str) -> None:
    assert list(tool.find_decisions(planted, "engine/planted.py"))


@pytest.mark.parametrize(
    "harmless",
    [
        "def f(error): return error.cause is Cause.LATE",
        'def f(error): return error.message == "" or error.hint != ""',
        'def f(error): return f"{error.message}: {error.hint}"',
        "def f(error): return WorkloadError(error.message, cause=error.cause)",
        'def f(error): return " ".join(error.message.split())',
        'def f(error):\n    said = error.message\n    said = "x"\n    return said == "x"',
    ],
)
def test_what_only_shows_a_message_is_none(harmless: str) -> None:
    assert not list(tool.find_decisions(harmless, "engine/harmless.py"))


def test_texts_of_other_programs_are_read_in_one_module_alone() -> None:
    source = 'def heard(message): return "x" in message'
    assert not list(tool.find_decisions(source, "core/cause.py"))
    assert list(tool.find_decisions(source, "core/other.py"))


def test_every_cause_has_a_value_of_its_own_and_unknown_ones_are_read() -> None:
    assert len({cause.value for cause in Cause}) == len(list(Cause))
    assert Cause("a reason of the next version") is Cause.OTHER
    with pytest.raises(ValueError, match="7"):
        Cause(7)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("speaker", "said", "cause"),
    [
        (Speaker.SSH, "ssh: connect to host lab port 22: Connection refused", Cause.CONNECTION_REFUSED),
        (Speaker.SSH, "kex_exchange_identification: read: Connection reset by peer", Cause.CUT),
        (Speaker.SSH, "Permission denied (publickey).", Cause.NO_KEY),
        (Speaker.VIRSH, "error: failed to get domain 'web'", Cause.NO_DOMAIN),
        (Speaker.UML, "Core dump limits\nstart_ptraced_child : ptrace failed", Cause.NO_TRACING),
        (Speaker.TAR, "tar: x: Wrote only 4096 of 10240 bytes", Cause.NO_ROOM),
        (Speaker.ANY, "mke2fs: No space left on device", Cause.NO_ROOM),
        (Speaker.ANY, "all is well", Cause.OTHER),
    ],
)
def test_what_programs_say_is_turned_into_a_cause(speaker: Speaker, said: str, cause: Cause) -> None:
    assert classify_message(speaker, said).cause is cause


def test_failures_of_an_earlier_version_have_their_cause(tmp_path: Path) -> None:
    with open_ledger(recorded.ledger(tmp_path, "0_2"), writable=False) as ledger:
        run = ledger.load_run("failures")
    assert [trial.cause for trial in run.trials] == [
        Cause.STATUS,
        Cause.PLACEMENT,
        Cause.PLACEMENT,
        Cause.LATE,
        Cause.KILLED,
        Cause.NO_ROOM,
        Cause.TIME_LIMIT,
        Cause.NOT_AS_ASKED,
        Cause.ENDED,
        Cause.LOST,
    ]
    trials = make_result_document(run, analyse_run(run.plan, run.trials, run.unusable))["cells"][0]["trials"]
    assert [trial["cause"] for trial in trials[:3]] == ["exit status", "placement", "placement"]


def test_a_stored_cause_wins_over_the_reason() -> None:
    failed = Trial("host", 0, 0, TrialStatus.FAILED, "the placement of nothing", cause=Cause.LATE)
    body, console = pack_trial(failed)
    assert json.loads(body)["cause"] == "late"
    assert unpack_trial(body, console, "the trial").cause is Cause.LATE
    old = {key: value for key, value in json.loads(body).items() if key != "cause"}
    assert unpack_trial(json.dumps(old), console, "the trial").cause is Cause.PLACEMENT
