"""Completion is installed where each shell looks for it, and once only."""

from pathlib import Path

import pytest

from guestmark.cli import completion_scripts
from guestmark.core.errors import UsageError

PLACES = {
    "bash": (".bash_completions/guestmark.sh", ".bashrc"),
    "zsh": (".zfunc/_guestmark", ".zshrc"),
    "fish": (".config/fish/completions/guestmark.fish", None),
}


@pytest.mark.parametrize("shell", completion_scripts.SHELLS)
def test_installing_twice_is_the_same_as_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, shell: str
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(completion_scripts, "_find_current_shell", lambda: shell)
    script, start_file = PLACES[shell]
    if start_file is not None:
        (tmp_path / start_file).write_text("export MINE=1")  # without a line feed at its end
    completion_scripts.install_for_current_shell()
    completion_scripts.install_for_current_shell()
    assert (tmp_path / script).read_text() == completion_scripts.read_completion_script(shell)
    if start_file is not None:
        mine, *added = (tmp_path / start_file).read_text().splitlines()
        assert mine == "export MINE=1"
        assert len(added) == 1


def test_a_shell_that_is_not_known_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(completion_scripts, "SHELLS", ())
    with pytest.raises(UsageError, match="the current shell is not known"):
        completion_scripts.show_for_current_shell()
