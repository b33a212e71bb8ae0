"""The operations of the system-call mix, in the order in which the agent measures them."""

NOTHING = "nothing"  # the empty timed part, without operations
CALLS = (
    "null", "read", "write", "stat", "open", "futex", "signal", "mmap", "fault", "pipe", "switch", "exec",
)  # fmt: skip
