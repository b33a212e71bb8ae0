"""sysbench and fio in plans: options, what is scaled, which cells take which factors, and what is said at once."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from guestmark.core import registry as kinds
from guestmark.core.context import Context
from guestmark.core.errors import PlatformUnusableError, UsageError, WorkloadError
from guestmark.core.model import Cell, Plan, Policy, WorkloadSpec
from guestmark.core.platform_spec import PlatformSpec
from guestmark.plan import library
from guestmark.plan.load import load_outline
from guestmark.plan.matrix import expand_shape
from guestmark.workloads.base import find_trial_class
from guestmark.workloads.fio import trial as fio_report
from guestmark.workloads.sysbench.trial import merge_options
from tests.framework import GOLDEN
from tests.framework.cells import cell_of, plan_of
from tests.framework.known import known

HEAD = 'schema = "guestmark-plan/1"\nname = "x"\ntitle = "x"\nplatforms = ["host", "uml", "tcg"]\n'


def params(**given: Any) -> Mapping[str, Any]:
    return kinds.workload_kind("sysbench").check_params(given)


def cell(platform: str = "uml", factors: Mapping[str, str] | None = None, **given: Any) -> Cell:
    return Cell(
        platform, WorkloadSpec("sysbench", params(**given)), PlatformSpec.read(platform), factors or {}
    )


def remarks(*cells: Cell, path: str | None = None) -> Sequence[str]:
    context = Context(env={} if path is None else {"PATH": path})
    return find_trial_class("sysbench").preflight(Plan("x", cells, Policy(), (), context), cells)


def cells_of(text: str, scale: float = 1.0) -> tuple[Cell, ...]:
    return expand_shape(load_outline(HEAD + text, "x.toml", scale=scale).shape).cells


def test_a_test_ends_by_events_or_by_time() -> None:
    assert params(test="cpu")["options"]["time"] == "10"
    by_events = params(test="cpu", events=500)["options"]
    assert (by_events["events"], by_events["time"]) == ("500", "0")
    by_time = params(test="fileio", time="5min")["options"]
    assert (by_time["events"], by_time["time"]) == ("0", "300")
    assert params(test="mutex")["options"]["time"] == "0"
    with pytest.raises(ValueError, match="would never end"):
        params(test="threads", events=0)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"test": "cpu", "file_num": 4}, "an option of the test fileio"),
        ({"test": "cpu", "host_disk": "loop"}, "host_disk applies to the test fileio only"),
        ({"test": "fileio", "file_extra_flags": "odirect"}, "neither none nor a list of"),
        ({"test": "fileio", "file_test_mode": "random"}, "is not one of seqwr"),
        ({"test": "fileio", "file_total_size": "lots"}, "is not a size"),
        ({"test": "memory", "memory_oper": "copy"}, "is not one of read"),
        ({"test": "oltp"}, "Input should be"),
        ({"test": "cpu", "cpu_max_primes": 3}, "Extra inputs"),
    ],
)
def test_a_wrong_option_is_said(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        params(**given)


def test_sizes_are_whole_requests_in_every_file() -> None:
    scaled = cell(test="fileio", file_total_size="123M")
    assert merge_options(scaled)["file_total_size"] == "124M"
    large = cell(test="fileio", file_total_size="123M", factors={"file_block_size": "256K"})
    assert merge_options(large)["file_total_size"] == "128M"
    tiny = cell(test="fileio", file_total_size="4K")
    assert merge_options(tiny)["file_total_size"] == "2M"


def test_options_are_factors_of_their_own_test() -> None:
    cells = cells_of(
        'baseline = { platform = "host" }\n'
        '[factors]\nthreads = [1, 2]\nfile_test_mode = ["seqrd", "rndrw"]\nmount = "data=journal"\n'
        '[workloads.cpu]\nkind = "sysbench"\nparams.test = "cpu"\n'
        '[workloads.files]\nkind = "sysbench"\nparams.test = "fileio"\n'
        '[workloads.image]\nkind = "sysbench"\nparams.test = "fileio"\nparams.host_disk = "loop"\n'
    )
    of = {
        key: {str(cell.platform): set(cell.factors) for cell in cells if cell.workload.key == key}
        for key in ("cpu", "files", "image")
    }
    assert of["cpu"] == {name: {"threads"} for name in ("host", "uml", "tcg")}
    assert of["files"]["host"] == {"threads", "file_test_mode"}
    assert of["files"]["tcg"] == {"threads", "file_test_mode", "mount"}
    assert of["image"]["host"] == of["image"]["uml"] == {"threads", "file_test_mode", "mount"}


def test_what_is_scaled() -> None:
    text = (
        'scale = ["time", "events", "file_total_size"]\n'
        '[workloads.cpu]\nkind = "sysbench"\nparams.test = "cpu"\nparams.events = 10000\n'
        '[workloads.files]\nkind = "sysbench"\nparams.test = "fileio"\n'
        'params.file_total_size = "6G"\nparams.time = "300s"\n'
    )
    options = {cell.workload.key: merge_options(cell) for cell in cells_of(text, 0.02)}
    assert options["cpu"]["events"] == "200"
    assert (options["files"]["time"], options["files"]["file_total_size"]) == ("6", "124M")


def test_the_built_in_plan_has_every_published_figure() -> None:
    plan = load_outline(library.read_builtin("sysbench"), "sysbench", scale=0.02)
    assert {figure.value for published in plan.published for figure in published.figures} == {
        35.30, 36.56, 17.80, 18.10, 1.8424, 1.5591, 1.8435, 2.1328, 0.5999, 0.7679,
    }  # fmt: skip
    ratio = {figure.value: figure.baseline for published in plan.published for figure in published.figures}
    assert (ratio[36.56], ratio[18.10], ratio[1.5591], ratio[0.5999]) == (35.30, 17.80, 1.8424, 1.8435)
    groups = {cell.group for cell in expand_shape(plan.shape).cells}
    assert {"cpu, primes to 20000, threads=1", "cpu, primes to 20000, threads=2"} <= groups


# --- said before anything starts


def test_a_missing_sysbench_names_its_package(tmp_path: Path) -> None:
    with pytest.raises(PlatformUnusableError, match="sysbench is not installed") as error:
        remarks(cell(test="cpu"), path=str(tmp_path))
    assert error.value.hint == "install the package sysbench"
    fio = Cell(
        "uml",
        WorkloadSpec("fio", kinds.workload_kind("fio").check_params({"job": "[a]\n"})),
        PlatformSpec.read("uml"),
    )
    with pytest.raises(PlatformUnusableError) as error:
        find_trial_class("fio").preflight(
            Plan("x", (fio,), Policy(), (), Context(env={"PATH": str(tmp_path)})), (fio,)
        )
    assert error.value.hint == "install the package fio"


def test_files_larger_than_the_disk_are_refused() -> None:
    with pytest.raises(UsageError, match="the files need 2G, but its disk has 1G"):
        remarks(cell(test="fileio", factors={"size": "1G"}))
    assert cell(test="fileio").workload.params["disks"][0]["size"] == "3G"  # by itself it fits
    with pytest.raises(UsageError, match=r"the files need 1P, of which /tmp has .* GB free"):
        remarks(cell("host", {"location": "/tmp"}, test="fileio", file_total_size="1P"))


def test_files_need_a_filesystem() -> None:
    with pytest.raises(UsageError, match="needs a filesystem on its disk"):
        remarks(cell(test="fileio", factors={"filesystem": "none"}))


def test_a_set_smaller_than_memory_is_warned_of() -> None:
    (said,) = remarks(cell(test="fileio", file_total_size="256M", factors={"memory": "512M"}))
    assert "smaller than the machine's memory (512M)" in said
    assert "the page cache is measured, not the disk" in said
    assert not remarks(cell("tcg", {"cache": "none"}, test="fileio", file_extra_flags="direct"))
    large = {"memory": "512M", "size": "4G"}
    assert not remarks(cell(test="fileio", factors=large, file_total_size="1G"))
    (cached,) = remarks(cell("tcg", test="fileio", file_extra_flags="direct"))
    assert "despite O_DIRECT, I/O passes through the host's page cache" in cached


def test_threads_above_processors_are_noted() -> None:
    assert remarks(cell(test="cpu", factors={"threads": "2"})) == ["uml: 2 threads share 1 processor"]
    assert not remarks(cell("tcg", {"threads": "2", "smp": "2"}, test="cpu"))


# --- fio


@pytest.mark.parametrize(
    ("job", "values", "said"),
    [
        ("rw=read\n", {}, r"contains no \[job\]"),
        (
            "[a]\nfilename=/dev/sda\n",
            {},
            "line 2, 'filename=/dev/sda': a job's files must be on the disk under test",
        ),
        ("[a]\nfilename=x:/dev/sda\n", {}, "use a relative path"),
        ("[a]\ndirectory = ../..\n", {}, "use a relative path"),
        ("[a]\nfilename=sub/../../x\n", {}, "use a relative path"),
        ("[a]\nfilename_format=/tmp/$jobnum\n", {}, "line 2, 'filename_format=/tmp/.jobnum'"),
        ("[a]\nopendir=/etc\n", {}, "use a relative path"),
        ("[a]\nreplay_redirect=/dev/sda\n", {}, "use a relative path"),
        ("[/dev/sda]\nrw=write\n", {}, r"line 1, '\[/dev/sda\]': .*use a relative path"),
        ("[a]\nfilename=${F}\n", {"F": "/dev/sda"}, "line 2, 'filename=.{F}': .*use a relative path"),
        ("[a]\nfilename=x${F}\n", {"F": ":/dev/sda"}, "use a relative path"),
        ("[a]\nrw=read\n[b]\nstonewall\n", {}, "line 4, 'stonewall': .*make one workload of each job"),
        ("[global]\nwait_for_previous\n[a]\n[b]\n", {}, "must run at the same time"),
        ("[a]\nrw=read\n[b]\nwait_for=a\n", {}, "must run at the same time"),
        ("[a]\nstartdelay=5\n[b]\nrw=read\n", {}, "must run at the same time"),
        ("include more.fio\n[a]\n", {}, "must be one file"),
        ("[a]\nsize=${SIZE}\n", {}, r"needs values\.SIZE"),
        ("[a]\n", {"SIZE": "1M"}, r"values\.SIZE is not used"),
    ],
)
def test_a_job_file_that_cannot_be_run(job: str, values: dict[str, str], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        kinds.workload_kind("fio").check_params({"job": job, "values": values})


@pytest.mark.parametrize(
    "job",
    [
        "[global]\nstonewall\n[a]\nstartdelay=1\n",
        "[a]\nstonewall\n[b]\nrw=read\n",
        "[a]\n#stonewall\n[b]\n; wait_for=a\n# filename=/dev/sda\n",
        "[a/b]\nfilename=some..thing:b/c\n",
    ],
)
def test_a_job_file_that_stays_on_its_disk_can_be_run(job: str) -> None:
    assert kinds.workload_kind("fio").check_params({"job": job})["job"] == job


def test_a_job_file_is_kept_with_the_run(tmp_path: Path) -> None:
    path = tmp_path / "mine.fio"
    path.write_text("[a]\nrw=read\nsize=${SIZE}\nnumjobs=${THREADS}\nfilename=data\n")
    kind = kinds.workload_kind("fio")
    found = kind.check_params({"file": str(path), "values": {"SIZE": "1M"}})
    assert found["job"] == path.read_text()
    assert kind.make_spec(found).label == "fio mine.fio"
    with pytest.raises(ValueError, match="cannot be read: No such file"):
        kind.check_params({"file": str(tmp_path / "none")})
    with pytest.raises(ValueError, match="either file"):
        kind.check_params({})


def test_direct_io_of_a_job_that_the_host_caches_is_noted() -> None:
    def list_remarks(platform: str, job: str, **factors: str) -> Sequence[str]:
        asked = cell_of(platform, "fio", factors, job=f"[a]\nrw=read\nsize=1M\n{job}")
        return find_trial_class("fio").preflight(plan_of(asked), [asked])

    (remark,) = list_remarks("tcg", "direct=1\n")
    assert "despite O_DIRECT, I/O passes through the host's page cache" in remark
    assert "cache=none" in remark
    (remark,) = list_remarks("tcg", "direct=1\n", filesystem="virtiofs")
    assert "cache=none" not in remark
    assert not list_remarks("tcg", "direct=1\n", cache="none")
    assert not list_remarks("tcg", "")
    assert not list_remarks("host", "direct=1\n")


@pytest.mark.parametrize("release", ["debian12", "debian13"])
def test_real_json_of_fio_is_read(release: str) -> None:
    text = ((GOLDEN / "fio") / f"{release}.json").read_text()
    report = fio_report.parse_report("note: a remark\n" + text)
    assert report.notes == ("note: a remark",)
    assert report.jobs == 1
    assert report.runtime_s == pytest.approx(1.0, abs=0.01)
    assert report.bytes / report.runtime_s == pytest.approx(
        report.read.bytes_per_s + report.write.bytes_per_s, rel=0.01
    )
    assert report.read.bytes_per_s == pytest.approx(report.read.operations_per_s * 16384, rel=0.01)
    for side in (report.read, report.write):
        assert 1e-6 < known(side.latency_avg_s) < known(side.latency_p99_s) < 1


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('"error" : 0', '"error" : 28', "job 'randrw' failed with error 28"),
        ('"bw_bytes"', '"bandwidth"', "'bw_bytes' is missing in fio's JSON"),
        ('"runtime" : 1', '"runtime" : "1"', "is not JSON"),
        ('"jobs"', '"tasks"', "'jobs' is missing"),
        ("{", "", "printed no JSON"),
    ],
)
def test_json_that_is_not_fios_is_an_error(old: str, new: str, said: str) -> None:
    text = ((GOLDEN / "fio") / "debian12.json").read_text()
    assert old in text
    with pytest.raises(WorkloadError, match=said):
        fio_report.parse_report(text.replace(old, new))
