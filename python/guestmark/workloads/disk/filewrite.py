"""A file written sequentially in the guest, or on the host as the ceiling."""

from guestmark.workloads.disk.fill import FillWorkload


class FilewriteWorkload(FillWorkload):
    """`filewrite`: what `dd if=/dev/zero bs=1024k` and a flush would do."""
