"""The launcher after set-up: where it is started from and through must not matter; and what it says when it cannot."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.framework import CHECKOUT
from tests.framework.checkouts import Checkout, copy_checkout, handed_over


@pytest.fixture
def ready(tmp_path: Path) -> Checkout:
    return copy_checkout(tmp_path / "a checkout", venv=True)


@pytest.fixture
def bare(tmp_path: Path) -> Checkout:
    return copy_checkout(tmp_path / "bare", venv=False)


def test_first_start_stamps_and_later_ones_are_silent(ready: Checkout) -> None:
    handed_over(ready.run())
    stamp = (ready.path / ".setup/stamp").stat()
    again = ready.run("--some", "an argument", "")
    assert handed_over(again)["argv"] == ["guestmark", "--some", "an argument", ""]
    assert again.stderr == ""
    assert (ready.path / ".setup/stamp").stat().st_ino == stamp.st_ino


def test_callers_directory_is_kept_and_its_modules_are_not_imported(ready: Checkout, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "guestmark.py").write_text("raise SystemExit('imported from the working directory')")
    (elsewhere / "json.py").write_text("raise SystemExit('imported from the working directory')")
    told = handed_over(ready.run(cwd=elsewhere, env={**os.environ, "PYTHONPATH": str(elsewhere)}))
    assert told["cwd"] == str(elsewhere)
    assert told["package"] == str(ready.path / "python/guestmark/__init__.py")


@pytest.mark.parametrize("link", ["../a checkout/guestmark", "absolute", "chain"])
def test_started_through_a_symbolic_link(ready: Checkout, tmp_path: Path, link: str) -> None:
    (tmp_path / "bin").mkdir()
    start = tmp_path / "bin/gm"
    if link == "chain":
        (tmp_path / "bin/first").symlink_to(ready.launcher)
        start.symlink_to("first")
    else:
        start.symlink_to(ready.launcher if link == "absolute" else link)
    told = handed_over(
        subprocess.run([start], cwd="/", capture_output=True, text=True, timeout=60, check=False)
    )
    assert Path(str(told["package"])).is_relative_to(tmp_path)
    assert told["cwd"] == "/"


def test_started_from_path_and_as_an_argument_of_sh(ready: Checkout) -> None:
    env = {**os.environ, "PATH": f"{ready.path}:{os.environ['PATH']}"}
    for command in (["guestmark"], ["sh", "guestmark"], ["./guestmark"]):
        run = subprocess.run(
            command, cwd=ready.path, env=env, capture_output=True, text=True, timeout=60, check=False
        )
        assert handed_over(run)["cwd"] == str(ready.path)


READ_ONLY = ("unshare", "--mount", "--map-root-user", "sh", "-c")


def read_only(checkout: Checkout) -> tuple[str, ...]:
    """A prefix that starts a command with the checkout mounted read-only."""
    script = 'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && exec "$@"'
    return (*READ_ONLY, script, str(checkout.path))


def test_read_only_checkout(ready: Checkout) -> None:
    handed_over(ready.run())
    handed_over(ready.run(before=read_only(ready)))
    (
        ready.path / "Cargo.toml"
    ).touch()  # times differ, contents do not: still ready, though it cannot be stamped
    run = ready.run(before=read_only(ready))
    handed_over(run)
    assert run.stderr == ""


def test_read_only_checkout_that_is_not_set_up_says_so(bare: Checkout) -> None:
    run = bare.run(before=read_only(bare))
    assert run.returncode == 2
    assert "cannot write to" in run.stderr
    assert not run.stdout


@pytest.mark.parametrize("content", ["", "garbage\n", "target/gone\n", "\0\0\0\0"])
def test_broken_stamp_is_renewed(ready: Checkout, content: str) -> None:
    (ready.path / ".setup/stamp").write_text(content)
    run = ready.run()
    handed_over(run)
    assert (ready.path / ".setup/stamp").read_text() == "target/any/release/guestmark-agent\n"
    assert run.stderr == ""


@pytest.mark.long
def test_edited_agent_source_is_rebuilt_and_a_failing_build_shows_line_and_log(ready: Checkout) -> None:
    handed_over(ready.run())
    with (ready.path / "Cargo.toml").open("a") as manifest:
        manifest.write("\nthis is not TOML\n")
    for _ in range(2):  # it is never taken for done
        run = ready.run()
        assert run.returncode == 3
        assert "building the agent failed" in run.stderr
        assert str(ready.log) in run.stderr
        assert "Cargo.toml" in ready.log.read_text()
    shutil.copy2(CHECKOUT / "Cargo.toml", ready.path / "Cargo.toml")
    handed_over(ready.run())


@pytest.mark.long
def test_wrong_hash_is_refused(bare: Checkout) -> None:
    bare.tiny_lock()
    lock = bare.path / "requirements.txt"
    lock.write_text(lock.read_text().split(" ")[0] + " --hash=sha256:" + "0" * 64 + "\n    # run\n")
    run = bare.run()
    assert run.returncode == 3
    assert "installing the Python dependencies failed" in run.stderr
    assert str(bare.log) in run.stderr
    assert not (bare.path / ".venv/.guestmark").exists()


PLAIN_TOOLS = """
    basename cat chmod cut date dirname env find flock grep head id ls mkdir mount mv printf readlink rm sed
    setpriv setsid sh sha256sum sleep sort sync tail touch uname unshare
"""


@pytest.fixture
def plain_path(tmp_path: Path) -> Path:
    """A directory for PATH that holds a minimal system's programs and no package manager."""
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in PLAIN_TOOLS.split():
        if found := shutil.which(name):
            (programs / name).symlink_to(found)
    return programs


@pytest.mark.parametrize(
    ("identity", "command"),
    [
        (
            "ID=debian\nVERSION_CODENAME=trixie",
            "apt-get install --no-install-recommends qemu-system-x86 qemu-utils user-mode-linux",
        ),
        ("ID=ubuntu\nID_LIKE=debian", "apt-get install --no-install-recommends qemu-system-x86 "),
        ("ID=fedora", "dnf install qemu-system-x86-core qemu-img sysbench"),
        ('ID="rocky"\nID_LIKE="rhel centos fedora"', "dnf install qemu-kvm qemu-img"),
        ("ID=nixos", "nix-shell -p qemu"),
        ("ID=arch", "pacman -S --needed qemu-system-x86"),
        ('ID="opensuse-tumbleweed"\nID_LIKE="opensuse suse"', "zypper install qemu-x86 qemu-tools"),
        ("ID=alpine", "apk add qemu-system-x86_64"),
        ("ID=haiku", "with your package manager"),
    ],
)
def test_without_apt_the_packages_are_named(
    bare: Checkout, plain_path: Path, tmp_path: Path, identity: str, command: str
) -> None:
    release = tmp_path / "os-release"
    release.write_text(identity + "\n")
    masked = (
        "unshare",
        "--mount",
        "--map-root-user",
        "sh",
        "-c",
        'mount --bind "$0" /etc/os-release && exec "$@"',
    )
    run = bare.run(before=(*masked, str(release)), env={"PATH": str(plain_path), "HOME": str(tmp_path)})
    assert run.returncode == 2, run.stderr
    assert "these packages must be installed first" in run.stderr
    assert command in run.stderr
    assert "runs the tcg and kvm guests" in run.stderr
    assert not (bare.path / ".venv").exists()


def test_an_arm64_host_needs_its_own_emulator_and_no_user_mode_linux(
    bare: Checkout, plain_path: Path, tmp_path: Path
) -> None:
    for name, script in {"uname": "echo aarch64", "id": "echo 1000"}.items():
        (plain_path / name).unlink()
        (plain_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (plain_path / name).chmod(0o755)
    run = bare.run(env={"PATH": str(plain_path), "HOME": str(tmp_path)})
    assert run.returncode == 2, run.stderr
    assert "apt-get install --no-install-recommends qemu-system-arm qemu-utils sysbench " in run.stderr
    assert "qemu-system-x86" not in run.stderr
    assert "user-mode-linux" not in run.stderr


def test_neither_root_nor_sudo_prints_the_command_and_installs_nothing(
    bare: Checkout, plain_path: Path, tmp_path: Path
) -> None:
    (plain_path / "id").unlink()
    for name, script in {"id": "echo 1000", "apt-get": f'echo "$@" >>"{tmp_path}/apt-was-called"'}.items():
        (plain_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (plain_path / name).chmod(0o755)
    run = bare.run(env={"PATH": str(plain_path), "HOME": str(tmp_path)})
    assert run.returncode == 2, run.stderr
    assert "as root: apt-get install --no-install-recommends qemu-system-x86" in run.stderr
    assert not (tmp_path / "apt-was-called").exists()


def without(part: str, folder: Path) -> Checkout:
    """A copy whose environment has all but one of the parts that are installed on first use."""
    checkout = copy_checkout(folder, venv=True)
    shared = (checkout.path / ".venv").resolve()
    (checkout.path / ".venv").unlink()
    (checkout.path / ".venv").mkdir()
    for file in shared.iterdir():
        if file.name != part:
            (checkout.path / ".venv" / file.name).symlink_to(file)
    return checkout


@pytest.mark.long
def test_a_fleet_brings_its_engine_on_first_use(tmp_path: Path) -> None:
    checkout = without(".guestmark-fleet", tmp_path / "lab")
    checkout.lock_group("fleet", "this is not a requirement")
    assert handed_over(checkout.run("fleet", "show", "last"))["argv"] == [
        "guestmark",
        "fleet",
        "show",
        "last",
    ]
    failed = checkout.run("fleet", "run", "upload")
    assert failed.returncode == 3
    assert "installing the engine of fleets failed" in failed.stderr
    checkout.lock_group("fleet", "")
    done = checkout.run("fleet", "run", "upload")
    handed_over(done)
    assert "installing the engine of fleets" in done.stderr
    again = checkout.run("fleet", "run", "upload")
    handed_over(again)
    assert again.stderr == ""


@pytest.mark.long
def test_a_history_is_shown_even_where_what_finds_change_points_cannot_be_had(tmp_path: Path) -> None:
    checkout = without(".guestmark-history", tmp_path / "lab")
    checkout.lock_group("history", "this is not a requirement")
    for words in (("history", "--help"), ("runs", "history", "-h"), ("exec", "--", "history")):
        assert checkout.run(*words).stderr == ""  # installs nothing
    failed = checkout.run("runs", "history", "last")
    assert handed_over(failed)["argv"] == ["guestmark", "runs", "history", "last"]
    assert "installing Apache Otava failed" in failed.stderr
    failed = checkout.run("history", "last")
    assert handed_over(failed)["argv"] == ["guestmark", "history", "last"]
    assert "installing Apache Otava failed" in failed.stderr
    checkout.lock_group("history", "")
    assert "installing Apache Otava" in checkout.run("history", "last").stderr
    assert checkout.run("history", "last").stderr == ""
