"""Which packages a database server is from."""

from guestmark.core.errors import PlatformUnusableError
from guestmark.foreign.packages import owner_of
from guestmark.workloads.oltp.databases import kinds
from guestmark.workloads.oltp.metrics import OltpTest


def of_server(params: OltpTest) -> tuple[str, ...]:
    """The packages that this host's server was installed by; none if it is not here, or no package's."""
    database = kinds.KINDS[params.server]
    names = set()
    for program in database.packages:
        try:
            package = owner_of(database.find(program))
        except PlatformUnusableError:
            continue  # preflight says so, with the package to install
        if package is not None:
            names.add(package)
    return tuple(sorted(names))
