"""What `doctor` says of a machine."""

from guestmark.cli.do.doctor import list_facts


def test_what_is_unknown_of_a_machine_is_left_out() -> None:
    assert list_facts({}) == [("itself a guest", "no")]
    known = {"processor": {"model": "Core", "usable": 2}, "memory_bytes": 1 << 31}
    assert list_facts(known)[:2] == [("processor", "Core, 2 usable"), ("memory", "2.0 GiB")]
    assert list_facts({"processor": {"usable": 2}})[0] == ("processor", "2 usable")
