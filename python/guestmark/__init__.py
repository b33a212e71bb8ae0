"""guestmark: what virtualization costs a user's own workload, measured so that it is hard to fool."""

__version__ = "0.2.0"
