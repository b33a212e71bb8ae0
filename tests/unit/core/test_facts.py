"""Facts of trials: made as structs, kept by their keys, read as structs; nothing of another version is lost."""

import json
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guestmark.core.findings import (
    TARGET,
    Counted,
    Fact,
    Facts,
    Findings,
    Flushes,
    Mount,
    Program,
    list_keys,
    list_programs,
)
from guestmark.core.machine_facts import GuestMachine, MachineFacts
from guestmark.core.model import Trial, TrialStatus
from guestmark.ledger import codec
from guestmark.workloads.boot import Boot
from guestmark.workloads.netboot import Netboot
from guestmark.workloads.oltp import Oltp
from guestmark.workloads.syscalls import Syscalls
from tests.framework import made_facts

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**60), 2**60)
    | st.floats(allow_nan=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)


def stored(facts: Facts) -> Facts:
    """The facts of a trial that has been in a ledger."""
    trial = Trial("cell", 0, 0, TrialStatus.OK, facts=facts)
    return codec.unpack_trial(*codec.pack_trial(trial), "trial").facts


def test_what_was_added_is_read_as_its_type() -> None:
    findings = Findings()
    mount = findings.add(Mount(), TARGET)
    findings.add(made_facts.program("b" * 64))
    findings.add(made_facts.program("c" * 64), "server")
    findings.add(made_facts.flushes("unknown"))
    findings.add(made_facts.flushes("yes"))  # another iteration
    mount.options = "rw"  # completed after it was added
    facts = stored(findings.facts())
    assert facts.find_fact(Mount, TARGET) == Mount(options="rw")
    assert facts.find_fact(Mount) is None
    assert facts.find_fact(Flushes) == made_facts.flushes("yes")
    assert facts.find_fact(Program, "server") == made_facts.program("c" * 64)
    assert [program.sha256[0] for program in list_programs(facts)] == ["b", "c"]
    assert facts.kept["target_mount"] == "rw"
    assert facts.kept["server_binary_sha256"] == "c" * 64


def test_what_is_not_known_yet_is_absent() -> None:
    assert made_facts.of(Oltp(), Syscalls(), Mount()) == Facts({})


def test_a_workload_in_another_brings_its_facts() -> None:
    inner, outer = Findings(), Findings()
    inner.add(made_facts.program("b" * 64))
    outer.add_all(inner)
    assert outer.facts() == inner.facts()


def test_facts_of_a_later_version_are_kept_at_every_depth() -> None:
    plain = made_facts.of(made_facts.guest(["vmx"]), made_facts.flushes("yes")).kept
    later = json.loads(json.dumps(plain)) | {"phase_of_the_moon": {"lit": 0.5}}
    later["guest"]["numa_nodes"] = [1, {"cpus": 2}]
    facts = stored(Facts(later))
    assert facts == Facts(later)
    guest = facts.find_fact(GuestMachine)
    assert guest is not None
    assert guest.guest.cpu_flags_missing == ["vmx"]
    assert facts.find_fact(Flushes) == made_facts.flushes("yes")


def test_facts_of_another_form_are_as_good_as_absent_and_kept() -> None:
    odd = {"flushes_reached_host": ["proven"], "counted": {"kvm_exits": "many"}, "initcalls": 3}
    facts = stored(Facts(odd))
    assert [facts.find_fact(kind) for kind in (Flushes, Counted, Boot)] == [None, None, None]
    assert facts == Facts(odd)


KEYS = sorted({known for kind in made_facts.every_kind() for known in list_keys(kind)})


@given(st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=5), JSON, max_size=8))
def test_whatever_is_kept_can_be_read(kept: dict[str, Any]) -> None:
    facts = stored(Facts(kept))
    assert facts.kept == kept
    for kind in made_facts.every_kind():
        found = facts.find_fact(kind)
        assert found is None or isinstance(found, kind)
    for program in list_programs(facts):
        assert isinstance(program, Program)


def test_a_key_has_one_owner() -> None:
    """But for those of machines, of which a trial has one, and `inner`, which a network boot has in place of them."""
    owners = [kind for kind in made_facts.every_kind() if not issubclass(kind, MachineFacts)]
    assert {Netboot, Oltp, Syscalls, Boot, Flushes} <= set(owners)
    counts = Counter(key for kind in owners for key in list_keys(kind))
    assert [key for key, count in counts.items() if count > 1] == []
    machines = {key for kind in made_facts.every_kind() if kind not in owners for key in list_keys(kind)}
    assert machines & counts.keys() == {"inner"}


@pytest.mark.parametrize("kind", made_facts.every_kind(), ids=lambda kind: kind.__name__)
def test_a_name_cannot_make_one_fact_look_like_another(kind: type[Fact]) -> None:
    named = {f"{name}_{key}" for name in (TARGET, "server") for key in list_keys(kind)}
    assert not named & {key for other in made_facts.every_kind() for key in list_keys(other)}
