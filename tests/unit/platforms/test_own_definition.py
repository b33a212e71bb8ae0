"""Files of a user's own machines: what is wrong in them is said, and values never become words or options."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guestmark.core.errors import UsageError
from guestmark.platforms.own.definition import Template, parse_definition
from guestmark.platforms.own.store import (
    VARIABLE,
    check_trust,
    definitions,
    find_definition,
    is_trusted,
    machines_directory,
    trust,
)

SOUND = {
    "name": '"box"',
    "create": '"tool run {id} {image}"',
    "exec": '"tool exec {id} {command}"',
    "destroy": '"tool rm {id}"',
}
PARAMETERS = '\n[parameters]\nimage = "debian"\n'


def text_of(**changes: str) -> str:
    lines = {**SOUND, **changes}
    return "".join(f"{key} = {value}\n" for key, value in lines.items() if value) + PARAMETERS


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"name": '"Box"'}, "cannot be named 'Box'"),
        ({"name": ""}, "lacks the key `name`"),
        ({"exec": ""}, "lacks the key `exec`"),
        ({"exec": '"tool exec {id}"'}, "has no {command}"),
        ({"exec": "\"ssh {id} 'cd /; {command}'\""}, "inside a word"),
        ({"create": '"tool run {image}"'}, "create has no {id}"),
        ({"destroy": ""}, "destroy has no {id}"),
        ({"create": ""}, "destroy goes with create"),
        ({"create": '"tool run {id} {imgae}"'}, "{imgae}, which stands for nothing"),
        ({"list": '"tool list {id}"'}, "list has {id}"),
        ({"create": '"tool run {id} \'"'}, "No closing quotation"),
        ({"create": "7"}, "create: expected"),
        ({"destory": '"tool rm {id}"'}, "unknown key 'destory'"),
        ({"timeouts": "{ create = -1 }"}, "timeouts.create is -1 s"),
        ({"timeouts": "{ crate = 1 }"}, "crate"),
        ({"env": '{ "A-B" = "1" }'}, "no variable's name"),
        ({"create": '"tool \\u0007 {id}"'}, "control characters"),
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
    assert definition.values({"image": "alpine"}) == {"image": "alpine"}
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
    found = definitions()
    assert {"podman", "docker", "kata", "nspawn", "lxc", "chroot", "pod", "incus", "lima", "gcloud"} <= set(
        found
    )
    assert all(is_trusted(definition) and definition.help for definition in found.values())
    assert all(definition.path.stem == name for name, definition in found.items())


def test_a_foreign_file_is_trusted_by_its_text(homes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = homes / "box.toml"
    path.write_text(text_of())
    monkeypatch.setenv(VARIABLE, str(path))
    with pytest.raises(UsageError, match="nobody has trusted"):
        check_trust(find_definition("box"))
    trust(find_definition("box"))
    check_trust(find_definition("box"))
    path.write_text(text_of(destroy='"tool rm {id} --all"'))
    with pytest.raises(UsageError, match="nobody has trusted"):
        check_trust(find_definition("box"))


@pytest.mark.parametrize("mode", [0o600, 0o622])
def test_ones_own_folder_is_trusted_where_nobody_else_can_write(homes: Path, mode: int) -> None:
    machines_directory().mkdir(parents=True, mode=0o700)
    path = machines_directory() / "box.toml"
    path.write_text(text_of())
    path.chmod(mode)
    assert is_trusted(find_definition("box")) == (mode == 0o600)


def test_a_broken_file_does_not_hide_another(homes: Path) -> None:
    machines_directory().mkdir(parents=True, mode=0o700)
    (machines_directory() / "broken.toml").write_text("name = ")
    assert find_definition("podman").shipped
    assert os.access(machines_directory(), os.R_OK)
