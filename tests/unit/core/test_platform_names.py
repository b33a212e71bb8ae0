"""The grammar of platform names."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guestmark.core import registry
from guestmark.core.errors import UsageError
from guestmark.core.platform_spec import PlatformSpec, parse_platform, parse_platforms


@pytest.mark.parametrize(
    "name",
    [
        "host",
        "kvm",
        "tcg",
        "uml",
        "tcg@sparc64",
        "tcg/kvm",
        "kvm/uml",
        "ssh:me@example.org",
        "ssh:me@2001:db8::1/kvm@x86_64",
    ],
)
def test_names_are_their_own_canonical_spelling(name: str) -> None:
    assert str(parse_platform(f" {name} ")) == name


@pytest.mark.parametrize("name", ["tcg@ARM64", "tcg@AArch64", "tcg@aarch64"])
def test_architectures_may_be_called_otherwise(name: str) -> None:
    assert str(parse_platform(name)) == "tcg@arm64"


def test_parts_of_a_nested_name() -> None:
    spec = parse_platform("tcg@sparc64/kvm")
    assert (spec.outer.kind, spec.outer.arch, spec.inner.kind) == ("tcg", "sparc64", "kvm")
    assert spec.is_nested
    assert spec.is_guest
    assert not parse_platform("host").is_guest


@pytest.mark.parametrize(
    ("name", "telling"),
    [
        ("hots", "did you mean 'host'"),
        ("qemu", "gvisor, host, kvm"),
        ("", "known: host"),
        ("host@arm", "write host"),
        ("uml@x86_64", "write uml"),
        ("host/kvm", "write kvm alone"),
        ("uml/kvm", "nest it in kvm or tcg"),
        ("kvm/host", "name both: kvm,host"),
        ("uml/host", "name both: uml,host"),
        ("kvm/ssh:x", "outermost first"),
        ("tcg/own:podman", "host = "),
        ("ssh:", "ssh:user@example.org"),
        ("ssh:-oProxyCommand=x", "ssh:user@example.org"),
        ("ssh:a b", "ssh:user@example.org"),
        ("ssh:lab1:2222", "ssh_config: Host lab1, HostName lab1, Port 2222"),
        ("ssh:me@[2001:db8::1]:2222", "HostName 2001:db8::1, Port 2222"),
        ("ssh:me@[::1]/tcg", "without brackets: me@::1"),
        ("kvm:x", "ssh:user@example.org"),
        ("tcg@", "tcg@sparc64"),
        ("tcg@../../etc", "outermost"),
        ("kvm//tcg", "known:"),
    ],
)
def test_bad_names_say_what_to_do(name: str, telling: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_platform(name)
    if name == "tcg@../../etc":  # `/` nests, so this is several names, the first of them wrong
        assert "architecture" in caught.value.message
    else:
        assert telling in caught.value.hint


def test_a_list_keeps_order_and_duplicates() -> None:
    assert [str(spec) for spec in parse_platforms(["host,uml", "host"])] == ["host", "uml", "host"]


@pytest.mark.parametrize("values", [[], [""], [","], ["host,"], ["host,,uml"]])
def test_empty_names_are_refused(values: list[str]) -> None:
    with pytest.raises(UsageError):
        parse_platforms(values)


@given(st.one_of(st.text(), st.from_regex(r"[a-z:@/.-]{0,30}", fullmatch=True)))
def test_any_text_parses_or_is_a_usage_error(text: str) -> None:
    try:
        spec = parse_platform(text)
    except UsageError as error:
        hint = error.hint
    else:
        hint = "not needed"
        assert parse_platform(str(spec)) == spec
    assert hint


layers = st.lists(st.sampled_from(["kvm", "tcg", "tcg@armhf", "kvm@x86_64"]), min_size=1, max_size=3)


@given(layers)
def test_every_nesting_of_emulators_reads_back(names: list[str]) -> None:
    spec = parse_platform("/".join(names))
    assert isinstance(spec, PlatformSpec)
    assert [str(layer) for layer in spec.layers] == names
    assert all(layer.kind in registry.index_platform_kinds() for layer in spec.layers)
