"""Workloads: each package describes one, or several that are alike, as classes."""
