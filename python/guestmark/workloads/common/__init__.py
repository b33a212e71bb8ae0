"""Modules that several workloads share."""
