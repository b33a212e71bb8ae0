"""What happened below a disk workload, as metrics; in the order of tables. Counts are of one iteration."""

from guestmark.core.metric import Metric

HOST_WRITTEN = Metric("host_written_bytes", "B")  # that the hypervisor wrote to the images
HOST_WRITES = Metric("host_writes", "1")  # the number of requests
WRITES_PER_MB = Metric("host_writes_per_mb", "1/MB")  # of content, 10^6 bytes
WRITE_AMPLIFICATION = Metric(
    "write_amplification", "ratio"
)  # bytes written to the images for each of content
HOST_READ = Metric("host_read_bytes", "B")
GUEST_FLUSHES = Metric("guest_flushes", "1")  # flush requests that the guest's kernel sent to the disk
HOST_FLUSHES = Metric("host_flushes", "1")  # flushes that the hypervisor passed on to the host
FLUSHES_PER_MB = Metric("guest_flushes_per_mb", "1/MB")
ALLOCATED = Metric("allocated_bytes", "B")  # of the target on the host's disk, afterwards
GUEST_CPU = Metric("guest_cpu_s", "s")  # of all processors of the guest, kernel and interrupts included
VMM_CPU = Metric("vmm_cpu_s", "s")  # of the hypervisor's process on the host

BELOW: tuple[Metric, ...] = (
    HOST_WRITTEN,
    HOST_WRITES,
    WRITES_PER_MB,
    WRITE_AMPLIFICATION,
    HOST_READ,
    GUEST_FLUSHES,
    HOST_FLUSHES,
    FLUSHES_PER_MB,
    ALLOCATED,
    GUEST_CPU,
    VMM_CPU,
)
