"""Examples for each verb's help and the manual page. Every line works as it is printed."""

from collections.abc import Mapping

# The lines of each verb, with what they do. The guide has more of them.
EXAMPLES: Mapping[str, tuple[tuple[str, str], ...]] = {
    "exec": (
        ("exec --on host,uml,tcg -- sysbench cpu --events=1000 --time=0 run", "a program on the host and in guests"),
        ("exec 'gzip -kf file' 'zstd -kf file'", "two commands on the host, as with hyperfine"),
        ("exec -r 20 -L level 1,6,9 -- gzip -kf -{level} file", "one command at three levels"),
    ),
    "ab": (
        ("ab -- ./old --- ./new", "two programs"),
        ("ab --kernel /boot/vmlinuz-6.1 /boot/vmlinuz-6.12 -- ./program", "two kernels of a guest"),
        ("ab --env OMP_NUM_THREADS 1 2 --fail-if '> +3%' -- ./program", "two values of a variable, with a limit"),
    ),
    "tour": (("tour", "every platform that works here"), ("tour --on uml", "one platform")),
    "run": (
        ("run upload --for 5m", "a built-in plan, cut to what five minutes can answer"),
        ("run upload --list", "its cells, and how long they take here"),
        ("run mine.toml --on tcg --set cache=none,writeback", "your own plan, with one more factor"),
    ),
    "boot": (
        ("boot --on tcg,uml", "two kinds of guests, phase by phase"),
        ("boot --on tcg --initcalls --blocks 1", "the kernel's slowest initcalls"),
    ),
    "powercut": (
        ("powercut --on tcg,uml", "records that guestmark writes"),
        ("powercut --on host -- sqlite3 rows.db 'create table rows (n)'", "what a program's own syncs guarantee"),
        ("powercut --on host --fail-if part -- ./store put key value", "the same, as a check on a build server"),
    ),
    "tune": (
        ("tune fastest-safe --for 5m", "the fastest disk that loses nothing"),
        ("tune fastest-safe --only 'platform=tcg and format=raw' --list", "list the candidates; run nothing"),
    ),
    "fleet": (
        ("fleet doctor --machines lab.toml", "what the machines of a lab can measure"),
        ("fleet run upload --machines lab.toml --scale 0.02", "a plan on all of them"),
    ),
    "block": (("block RUN", "one block that no other job has"),),
    "resume": (
        ("resume last", "the rest of an interrupted run"),
        ("resume last --blocks 20", "the newest run, up to 20 blocks"),
    ),
    "campaign": (
        ("campaign upgrade --sides 6.1,6.12 --on host,kvm --blocks 8 -- ./program", "begin, on the first side"),
        ("campaign upgrade", "continue after a restart"),
    ),
    "bisect": (
        ("bisect --good v1.2 --build make --fail-if '> +1.5%' -- '{build}/program'", "the commit that made it slower"),
        ("bisect --good v1.2 --fail-if part --build make -- '{build}/store' put key value", "one that removed a sync"),
    ),
    "show": (
        ("show", "the newest run"),
        ("show last --details", "everything about it"),
        ("show last --html result.html", "a page with charts"),
    ),
    "runs": (
        ("runs", "all runs"),
        ("runs --filter 'workload~sysbench and since=7d'", "the runs of the last week that ran sysbench"),
    ),
    "compare": (
        ("compare before-upgrade last", "two runs, and the hosts they were measured on"),
        ("compare monday tuesday --fail-if 'tcg > +5%'", "with a limit"),
    ),
    "history": (("history", "ratios over all runs"), ("history --html history.html", "the same as a page")),
    "gate": (
        ("gate last --fail-if 'tcg > +5%'", "the newest run against a limit"),
        ("gate last --fail-if 'tcg > +5%' --junit gates.xml", "the same for a build server"),
    ),
    "export": (
        ("export last -o result.parquet", "the raw figures; the suffix selects the format"),
        ("export last --bundle run.gmk.html", "the run itself, to share"),
    ),
    "doctor": (
        ("doctor", "which platforms work here"),
        ("doctor --nested", "with the time that guests inside guests need"),
        ("doctor --details", "why the others do not work, and versions"),
    ),
    "plans": (
        ("plans", "the built-in plans, and how long each takes here"),
        ("plans show upload > mine.toml", "a copy to edit"),
    ),
    "prepare": (
        ("prepare kernel", "a kernel for guests"),
        ("prepare tcg@arm64", "what an arm64 guest boots"),
    ),
    "machine": (
        ("machine list", "the machines that are defined"),
        ("machine new mine --from podman", "a file of your own, to edit"),
        ("machine check mine", "whether it can be measured, point by point"),
    ),
    "shell": (("shell --on tcg", "a shell in the guest that would be measured"),),
    "clean": (
        ("clean", "remove what crashes left behind"),
        ("clean --all --dry-run", "list everything that guestmark keeps here"),
    ),
    "quiet": (("quiet status", "the current settings"), ("quiet on", "steadier, until `quiet off`")),
    "edit": (("edit last --name before-upgrade --tag nightly", "a name and a tag"),),
    "rm": (("rm last", "remove the newest run"), ("rm last --undo", "bring it back")),
    "vacuum": (("vacuum", "delete removed runs for good"),),
    "import": (
        ("import run.gmk.html", "a bundle"),
        ("import result.json", "a result of hyperfine or fio"),
    ),
    "ledger": (
        ("ledger copy OTHER.sqlite LEDGER.sqlite", "runs that the second ledger lacks"),
        ("ledger role bench", "SQL that creates a role on a server"),
    ),
    "capture": (
        ("capture FILE.pcap", "who is slow"),
        ("capture FILE.pcap --details --html page.html", "each request, and pictures"),
    ),
}  # fmt: skip


def render_examples(verb: str, width: int = 80) -> list[str]:
    """Renders the lines for a verb's help. What a line does is printed beside it if there is room, else above it."""
    rows = [(f"guestmark {line}", what) for line, what in EXAMPLES.get(verb, ())]
    if not rows:
        return []
    longest = max(len(line) for line, _ in rows)
    shown = ["Examples:"]
    for line, what in rows:
        if longest + len(what) + 6 <= width:
            shown.append(f"  {line:{longest}}  # {what}")
        else:
            shown += [f"  # {what}", f"  {line}"]
    return shown
