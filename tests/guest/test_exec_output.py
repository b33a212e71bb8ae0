"""Where the output of a measured command goes: /dev/null, unless something reads it."""

import pytest

from guestmark.core.errors import UsageError, WorkloadError
from guestmark.core.metric_spec import parse_metrics, split_metrics
from guestmark.core.model import Cell, WorkloadSpec
from guestmark.core.platform_spec import PlatformSpec
from guestmark.workloads.exec import ExecWorkload
from tests.framework.guests import started
from tests.framework.marks import long

WHERE = "if [ /dev/stdout -ef /dev/null ]; then echo null >&2; else echo kept >&2; fi; echo said"


def on(platform: str, text: str, **params: object) -> Cell:
    plan = ExecWorkload.check_params({"command": ["sh", "-c", text], **params})
    return Cell("test", WorkloadSpec("exec", plan), PlatformSpec.read(platform), {})


@pytest.mark.parametrize("platform", ["host", "uml", long("tcg")])
def test_standard_output_goes_to_dev_null_and_standard_error_is_kept(platform: str) -> None:
    with started(on(platform, WHERE)) as (machine, workload):
        workload.prepare(machine)
        workload.run(machine)
        assert workload.printed == "null\n"


@pytest.mark.parametrize(
    "params", [{"metrics": ["n=said(.*)"]}, {"expect": "said"}, {"output": "pipe"}], ids=str
)
def test_what_is_read_comes_through_a_pipe(params: dict[str, object]) -> None:
    with started(on("host", WHERE.replace("said", "said 5"), **params)) as (machine, workload):
        workload.prepare(machine)
        workload.run(machine)
        assert workload.printed == "said 5\nkept\n"


def test_a_metric_in_a_file_needs_no_pipe() -> None:
    specs, _ = split_metrics(parse_metrics(["n=file:/tmp/x#([0-9]+)", "cycles=perf:cycles"]))
    assert len(specs) == 2
    cell = on("host", WHERE, metrics=["n=file:/tmp/x#([0-9]+)"])
    assert cell.workload.params["output"] == "null"


def test_a_metric_and_dev_null_exclude_each_other() -> None:
    with pytest.raises(UsageError, match="discards what --metric reads"):
        on("host", WHERE, metrics=["n=([0-9]+)"], output="null")


def test_a_failure_without_a_word_says_where_the_words_went() -> None:
    with started(on("host", "echo why; exit 3")) as (machine, workload):
        workload.prepare(machine)
        with pytest.raises(WorkloadError, match="exit status 3") as caught:
            workload.run(machine)
        assert "--show-output" in caught.value.hint
    with started(on("host", "echo why >&2; exit 3")) as (machine, workload):
        workload.prepare(machine)
        with pytest.raises(WorkloadError, match="exit status 3: why") as caught:
            workload.run(machine)
        assert not caught.value.hint
