"""Finds all parts of a foreign machine, or builds them together."""

from __future__ import annotations

import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from guestmark.appliance.kernel import Kernel
from guestmark.core.architectures import ARCHITECTURES, Architecture, Source
from guestmark.core.errors import GuestmarkError, PlatformUnusableError
from guestmark.core.platform_kind import Program
from guestmark.foreign import agents, commands, kernels, roots, store
from guestmark.foreign.packages import list_served
from guestmark.foreign.progress import CombinedProgress, Progress
from guestmark.foreign.roots import Root

SILENT = Progress()


@dataclass(frozen=True, slots=True)
class Parts:
    """The files that a foreign machine boots; `root` is None for an architecture without packages."""

    agent: Path
    kernel: Kernel
    root: Root | None


def find_parts(architecture: Architecture, packages: Iterable[str] = ()) -> Parts | None:
    """Returns the parts; None unless all of them have been built."""
    agent, kernel = agents.find_agent(architecture), kernels.find_built_kernel(architecture)
    root = None
    if architecture.root:
        root = roots.find_root(architecture, packages)
    if agent is None or kernel is None or (architecture.root and root is None):
        return None
    return Parts(agent, kernel, root)


def get_parts(
    architecture: Architecture,
    packages: Iterable[str] = (),
    progress: Progress = SILENT,
    besides: Callable[[], Sequence[Program]] = lambda: (),
) -> Parts:
    """Returns the parts; builds missing ones, the agent at the same time as the others.

    The programs needed for that, and those that `besides` returns, are installed first if this user may do so.
    Raises `PlatformUnusableError` naming the packages, `GuestmarkError` if something fails.
    """
    wanted = tuple(packages)
    lacking = [*besides(), *list_missing(architecture)]
    if not lacking and (there := find_parts(architecture, wanted)):
        return there
    if lacking and (
        fault := _explain_unserved(
            architecture, list_served(), kernels.find_built_kernel(architecture) is not None
        )
    ):
        raise PlatformUnusableError(
            fault, hint="copy the parts from another machine: guestmark prepare --help"
        )
    whole = CombinedProgress(
        progress,
        f"setting up tcg@{architecture.name}",
        _estimate_missing_s(architecture, _list_made(architecture, wanted), lacking),
    )
    with _stop_in_order():
        if lacking and commands.install_packages(_list_packages(lacking), whole):
            agents.forget_toolchains()
        _require_installable(architecture, [*besides(), *list_missing(architecture)])
        made = _collect_made_parts(architecture, wanted, whole)
    whole.complete()
    return made


def _collect_made_parts(
    architecture: Architecture, packages: Sequence[str], whole: CombinedProgress
) -> Parts:
    with ThreadPoolExecutor(1) as beside:
        making = beside.submit(
            lambda: agents.find_agent(architecture) or agents.make_agent(architecture, whole)
        )

        def cancel_kernel(made: Future[Path]) -> None:
            # A kernel is of no use without an agent.
            if made.exception():
                whole.cancel()

        making.add_done_callback(cancel_kernel)
        try:
            kernel = kernels.find_built_kernel(architecture) or kernels.make_kernel(architecture, whole)
            made = get_root(architecture, packages, whole) if architecture.root else None
            return Parts(_wait_for_part(making, architecture, whole), kernel, made)
        except BaseException:
            whole.cancel()
            if making.done():
                # If the agent's build failed, that error came first and caused this one.
                making.result()
            raise


@contextmanager
def _stop_in_order() -> Iterator[None]:
    """Handles SIGTERM and SIGHUP like Ctrl-C inside the context, so that processes end and a message is printed."""
    # Python installs signal handlers in the main thread only.
    is_main = threading.current_thread() is threading.main_thread()
    ending = []
    for number in (signal.SIGTERM, signal.SIGHUP):
        if is_main and signal.getsignal(number) is signal.SIG_DFL:
            ending.append(number)
            signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        for number in ending:
            signal.signal(number, signal.SIG_DFL)


def _wait_for_part(making: Future[Path], architecture: Architecture, progress: Progress) -> Path:
    try:
        return making.result()
    except KeyboardInterrupt:
        progress.say(store.describe_interruption(agents.KIND, architecture))
        raise


def _list_made(architecture: Architecture, packages: Iterable[str] = ()) -> dict[str, bool]:
    """Returns, for each part that the architecture needs, whether it has been built."""
    made = {
        "agent": agents.find_agent(architecture) is not None,
        "kernel": kernels.find_built_kernel(architecture) is not None,
    }
    # Without packages for the architecture, its machines stay in the initramfs.
    if architecture.root:
        made["root"] = roots.find_root(architecture, packages) is not None
    return made


def _estimate_missing_s(
    architecture: Architecture, made: Mapping[str, bool], lacking: Sequence[Program]
) -> float:
    """Estimates the seconds to build missing parts, with a fast network; compiling takes longer on one processor.

    Half of the downloading and unpacking takes no extra time while something is compiled.
    """
    built = {"agent": agents.estimate_s(architecture)}
    fetched = {"root": roots.EXPECTED_S}
    costs = fetched if architecture.kernel is Source.DISTRIBUTION else built
    costs["kernel"] = kernels.estimate_s(architecture)
    compiling, fetching = _add_missing_costs(built, made), _add_missing_costs(fetched, made)
    if compiling:
        fetching *= 0.5
    installing = 0.0
    if lacking:
        installing = commands.INSTALLING_EXPECTED_S
    several = min(2, len(os.sched_getaffinity(0)))
    return installing + compiling * 2 / several + fetching


def _add_missing_costs(costs: Mapping[str, float], made: Mapping[str, bool]) -> float:
    return sum(seconds for name, seconds in costs.items() if not made.get(name, True))


def get_agent(architecture: Architecture, progress: Progress = SILENT) -> Path:
    """Returns only the agent, which is built if needed.

    Raises `PlatformUnusableError` naming what has to be installed.
    """
    if found := agents.find_agent(architecture):
        return found
    _require_installable(architecture, agents.list_missing(architecture))
    return agents.make_agent(architecture, progress)


def get_root(architecture: Architecture, packages: Iterable[str] = (), progress: Progress = SILENT) -> Root:
    """Returns only the root, which is built if needed. Raises `GuestmarkError`."""
    wanted = tuple(packages)
    return roots.find_root(architecture, wanted) or roots.make_root(architecture, wanted, progress)


def list_missing(architecture: Architecture) -> list[Program]:
    """Returns the programs that are needed to build the missing parts but not installed."""
    found = []
    if agents.find_agent(architecture) is None:
        found += agents.list_missing(architecture)
    if kernels.find_built_kernel(architecture) is None:
        found += kernels.list_missing(architecture)
    return list(dict.fromkeys(found))


def check_parts(architecture: Architecture, besides: Sequence[Program] = ()) -> None:
    """Raises `PlatformUnusableError` naming all programs to install first, including those in `besides`."""
    _require_installable(architecture, [*besides, *list_missing(architecture)])


def check_agent(architecture: Architecture, besides: Sequence[Program] = ()) -> None:
    """Raises `PlatformUnusableError` naming all programs to install first for the agent, and those in `besides`."""
    missing = []
    if agents.find_agent(architecture) is None:
        missing = agents.list_missing(architecture)
    _require_installable(architecture, [*besides, *missing])


def _require_installable(architecture: Architecture, found: Sequence[Program]) -> None:
    if found:
        names = ", ".join(dict.fromkeys(program.name for program in found))
        packages = " ".join(_list_packages(found))
        raise PlatformUnusableError(
            f"{architecture.name} machines need programs that are not installed here: {names}",
            hint=f"as root: apt-get install {packages}; or copy the built parts from another machine: "
            "guestmark prepare --help",
        )


def _list_packages(programs: Sequence[Program]) -> list[str]:
    """Returns the packages of the programs, each once; a program can need several."""
    names: list[str] = []
    for program in programs:
        names += program.package.split()
    return list(dict.fromkeys(names))


@dataclass(frozen=True, slots=True)
class State:
    """The state of one architecture here: `made` tells which parts exist, `missing` lists programs to install."""

    architecture: Architecture
    made: dict[str, bool]
    missing: list[Program]
    # The reason why a part cannot be used or built; empty if there is none.
    fault: str = ""

    @property
    def platform(self) -> str:
        """The name of the architecture's platform."""
        if self.architecture.is_host:
            return "tcg"
        return f"tcg@{self.architecture.name}"

    @property
    def first_use_s(self) -> int:
        """The approximate seconds that the first use takes; 0 if all parts have been built."""
        if not self.made:
            return 0
        return round(_estimate_missing_s(self.architecture, self.made, self.missing))


def survey_parts() -> list[State]:
    """Returns the state of all architectures, the host's first. Nothing is started, built or downloaded."""
    rows = sorted(ARCHITECTURES.values(), key=lambda row: (not row.is_host, row.name))
    known = list_served()
    return [_describe_state(row, known) for row in rows]


def _explain_unserved(row: Architecture, known: frozenset[str] | None, made: bool) -> str:
    """Returns why no kernel for the architecture can be downloaded here; empty if it can, or if there is one."""
    absent = known is not None and row.name not in known
    if row.kernel is Source.DISTRIBUTION and not made and absent:
        return f"this system's package sources have no packages for {row.name}; a newer release may have them"
    return ""


def _describe_state(row: Architecture, known: frozenset[str] | None) -> State:
    lacking = [row.emulator] if shutil.which(row.emulator.name) is None else []
    if row.is_host:
        return State(row, {}, lacking)
    try:
        made = _list_made(row)
        return State(row, made, [*lacking, *list_missing(row)], _explain_unserved(row, known, made["kernel"]))
    except GuestmarkError as error:
        return State(row, {}, lacking, error.message)
