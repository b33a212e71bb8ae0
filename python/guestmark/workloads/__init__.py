"""Workloads: each package contains the classes of one workload, or of several similar ones."""
