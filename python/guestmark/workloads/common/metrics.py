"""What the disk workloads measure. Rates are of content bytes, in bytes a second; shown in MB/s, which is 10^6."""

from guestmark.core.metric import Better, Metric
from guestmark.disks.metrics import BELOW

THROUGHPUT = Metric("throughput", "B/s", Better.HIGHER)  # bytes of content, flushes included in the time
WALL = Metric("wall_s", "s")
GUEST_WALL = Metric("guest_wall_s", "s")
GUEST_FLUSH = Metric("guest_flush_s", "s")  # the part of it in fsync and syncfs in the guest
HOST_FLUSH = Metric("host_flush_s", "s")  # the part of it in fsync of the image on the host
LAUNCH = Metric("launch_s", "s")
THROUGHPUT_WITH_LAUNCH = Metric("throughput_with_launch", "B/s", Better.HIGHER)
WALL_WITH_LAUNCH = Metric("wall_with_launch_s", "s")

WRITING = (THROUGHPUT, WALL, GUEST_WALL, GUEST_FLUSH, HOST_FLUSH, *BELOW)
READING = (THROUGHPUT, WALL, GUEST_WALL, *BELOW)
CHANNEL = (THROUGHPUT, WALL, GUEST_WALL)
LAUNCHING = (THROUGHPUT, WALL, GUEST_FLUSH, HOST_FLUSH, LAUNCH, THROUGHPUT_WITH_LAUNCH, WALL_WITH_LAUNCH)
