"""A plan in real guests: `cpu`, small, on the host and in User-Mode Linux, with a factor that only guests take."""

import pytest

from tests.framework.command_line import CommandLine


@pytest.mark.usefixtures("guests_known")
@pytest.mark.timeout(280)
def test_the_example_plan_in_a_guest(guestmark: CommandLine) -> None:
    result = guestmark(
        "run", "cpu", "--on", "host,uml", "--scale", "0.05", "--blocks", 1, "--warmup", 0, "--iterations", 1,
        "--set", "memory=128M,256M", "--null", "none", "--quiet", "--json", "-", timeout=250,
    )  # fmt: skip
    assert result.status == 0, result.stderr
    document = result.document()
    assert [cell["id"] for cell in document["cells"]] == [
        "primes host", "primes uml memory=128M", "primes uml memory=256M",
        "syscalls host", "syscalls uml memory=128M", "syscalls uml memory=256M",
    ]  # fmt: skip
    assert [cell["id"] for cell in document["cells"] if cell["baseline"]] == ["primes host", "syscalls host"]
    argv = [cell["workload"]["params"]["argv"] for cell in document["plan"]["cells"]]
    assert argv[0][3] == "--events=150"
    for cell in document["cells"]:
        assert [trial["status"] for trial in cell["trials"]] == ["ok"]
    assert document["cells"][4]["vs_baseline"]["wall_s"]["ratio"] > 1
    assert "memory does not apply to host" in result.stderr
