"""What a run was measured on, as reports show it."""

from collections.abc import Mapping
from dataclasses import replace

from msgspec.structs import asdict

from guestmark.core.findings import Fact
from guestmark.core.machine_facts import (
    DiskImage,
    GuestMachine,
    ImageEntry,
    ImageFirmware,
    NestedMachine,
    OuterMachine,
)
from guestmark.ledger.model import StoredRun
from guestmark.report.document import make_result_document
from guestmark.report.export_format import Format
from guestmark.report.formats import export_run
from guestmark.report.sections.disk_images import describe_images
from guestmark.report.sections.environment import find_binaries, find_machines, make_rows
from tests.framework import made_facts
from tests.framework.runs import host_uml_tcg


def page(run: StoredRun) -> str:
    return export_run(run, Format.HTML).decode()


ENVIRONMENT = {
    "processor": {"model": "Core <5>", "count": 2, "microcode": "0x1", "smt": "1"},
    "frequency": {"governor": "powersave", "minimum_khz": "800000", "maximum_khz": "3400000", "boost": False},
    "memory_bytes": 4_000_000_000,
    "swap_bytes": 1_000_000_000,
    "disks": [{"name": "sda", "bytes": 500_000_000_000, "model": "ATA Disk", "rotational": True}],
    "filesystems": {"/var/tmp": {"device": "/dev/sda1", "mounted_at": "/", "type": "ext4", "options": "rw"}},
    "kernel": {"release": "6.1.0"},
    "virtualization": {"hypervisor": True, "vendor": "QEMU"},
    "mitigations": {"l1tf": "Not affected", "mds": "Not affected", "meltdown": "Mitigation: PTI"},
}


def run_with(digests: Mapping[str, str]) -> StoredRun:
    """Every trial with a digest by its platform, and missing flags in guests."""
    run = host_uml_tcg(blocks=2)
    flags: dict[str, list[str]] = {"uml": ["avx2", "vmx"], "tcg": []}
    trials = []
    for trial in run.trials:
        platform = trial.cell_id.partition("#")[0]
        facts: list[Fact] = [made_facts.program(digests[platform])]
        if platform in flags:
            facts.append(made_facts.guest(flags[platform]))
        trials.append(replace(trial, facts=made_facts.of(*facts)))
    return replace(run, trials=tuple(trials), environments=(ENVIRONMENT,))


SAME = {"host": "a" * 64, "uml": "a" * 64, "tcg": "a" * 64}


def test_the_authors_list_is_answered() -> None:
    said = dict(make_rows(run_with(SAME)))
    assert said["processor"] == "Core <5>, 2 processors, microcode 0x1, SMT on"
    assert said["frequency"] == "governor powersave, 0.80 to 3.40 GHz, boost off"
    assert said["memory"] == "4.0 GB, swap 1.0 GB"
    assert said["disk sda"] == "500.0 GB, ATA Disk, rotational"
    assert said["/var/tmp"] == "ext4 on /dev/sda1 (rw)"
    assert said["virtualization"] == "this host is itself a guest, QEMU"
    assert said["mitigations"] == "meltdown: Mitigation: PTI; 2 others: not affected"
    assert said["uml command"] == "qemu -M pc"
    assert said["uml lacks"] == "2 processor features of the host: avx2 vmx"
    assert said["tcg lacks"] == "no processor feature of the host"
    assert said["program"] == f"/bin/x is the same on host, uml, tcg: SHA-256 {'a' * 16}… in 8 of 8 trials"


def test_another_machine_is_described_with_what_its_kernel_mitigates() -> None:
    run = run_with(SAME)
    there = made_facts.of(made_facts.remote(mitigations={"meltdown": "Vulnerable", "mds": "Not affected"}))
    said = dict(make_rows(replace(run, trials=tuple(replace(trial, facts=there) for trial in run.trials))))
    assert "no hypervisor detected" in said["tcg"]
    assert said["tcg mitigations"] == "meltdown: Vulnerable; 1 other: not affected"
    none = made_facts.of(made_facts.remote(mitigations={"mds": "Not affected"}))
    said = dict(make_rows(replace(run, trials=tuple(replace(trial, facts=none) for trial in run.trials))))
    assert said["tcg mitigations"] == "not affected by any flaw known to the kernel"


def test_another_machine_is_described_once_however_its_trials_began() -> None:
    run = run_with(SAME)
    first, *others = (trial for trial in run.trials if trial.cell_id == "tcg")
    made = [
        made_facts.of(made_facts.remote({}, fresh)) for fresh in ("its command", "its command (another boot)")
    ]
    trials = [replace(first, facts=made[0]), *(replace(trial, facts=made[1]) for trial in others)]
    said = dict(make_rows(replace(run, trials=tuple(trials))))["tcg"]
    assert said.count("Core <5>") == 1
    assert ", fresh by its command (another boot); " in said


def test_another_program_on_one_side_is_said_loudly() -> None:
    run = run_with({**SAME, "tcg": "b" * 64})
    (binary,) = find_binaries(run)
    assert not binary.is_same_everywhere
    assert dict(make_rows(run))["program"].startswith("/bin/x is NOT the same: SHA-256 host aaaa")
    assert make_result_document(run)["programs"][0]["same"] is False


def test_machines_of_layers_inside_of_others_are_the_innermost() -> None:
    run = run_with(SAME)
    around = made_facts.guest(["x"])
    outer = OuterMachine(**asdict(around), started_for_each="block", inner_guest=1)
    trials = []
    for trial in run.trials:
        inner = trial.facts.find_fact(GuestMachine)
        nested = [NestedMachine(outer=outer, inner=inner)] if inner else []
        trials.append(replace(trial, facts=made_facts.of(*nested)))
    assert find_machines(replace(run, trials=tuple(trials))) == find_machines(run)


def test_the_page_and_the_document_have_it_in_full() -> None:
    run = run_with(SAME)
    text = page(run)
    assert "Core &lt;5&gt;" in text
    assert "a" * 64 in text
    document = make_result_document(run)
    assert document["machines"][0]["cpu_flags_missing"] == ["avx2", "vmx"]
    assert document["programs"][0]["sha256"] == {
        "host": ["a" * 64], "this host": ["a" * 64], "uml": ["a" * 64], "tcg": ["a" * 64]
    }  # fmt: skip


def test_runs_that_know_nothing_of_it_say_nothing() -> None:
    run = replace(host_uml_tcg(), environments=({},))
    assert dict(make_rows(run)).keys() == {"uml command", "tcg command"}
    assert "Measured on" in page(run)


def booted_from(path: str, sha256: str) -> Fact:
    image = DiskImage(
        path=path, sha256=sha256 * 64, format="raw", size=1 << 30,
        firmware=ImageFirmware.BIOS, entered=ImageEntry.SEED, distribution="Debian 12",
    )  # fmt: skip
    made = made_facts.guest()
    made.image = image
    return made


def test_images_are_known_by_their_paths_and_named_by_their_files() -> None:
    run = host_uml_tcg(blocks=2)
    images = {"uml": booted_from("/a/disk.raw", "a"), "tcg": booted_from("/b/disk.raw", "b")}

    def describe(images: Mapping[str, Fact]) -> list[str]:
        trials = []
        for trial in run.trials:
            facts = [images[trial.cell_id]] if trial.cell_id in images else []
            trials.append(replace(trial, facts=made_facts.of(*facts)))
        return list(describe_images(replace(run, trials=tuple(trials))))

    assert sorted(describe(images)) == ["image /a/disk.raw", "image /b/disk.raw"]
    assert describe({"tcg": images["tcg"]}) == ["image disk.raw"]
