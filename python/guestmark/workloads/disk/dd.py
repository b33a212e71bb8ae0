"""The source attached as a second disk, copied through the page cache one block after the other, as dd does."""

from guestmark.workloads.disk.copying import CopyWorkload


class DdWorkload(CopyWorkload):
    """`dd`."""
