"""The source attached as a second disk, copied with O_DIRECT on both sides and several large requests in flight.

No byte passes through the guest's processor: the host moves them from image to image.
"""

from guestmark.workloads.disk.copying import CopyWorkload


class DirectWorkload(CopyWorkload):
    """`direct`."""

    direct = True
