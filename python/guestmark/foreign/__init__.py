"""Agents, kernels and roots for machines of other architectures, built on first use and kept."""
