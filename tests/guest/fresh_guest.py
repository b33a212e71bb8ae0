"""A guest without an experiment around it, for tests."""

from guestmark.core.model import Cell, WorkloadSpec
from guestmark.platforms import registry


def start(platform, **factors):
    """A fresh guest, as a trial would start it."""
    return registry.get(platform).start(Cell("test", WorkloadSpec("test"), platform, factors))
