"""Workloads: each package describes one kind, or several that are alike, in its `WORKLOADS`."""
