"""Determines what survives a power cut: replays logs of writes to the states in which a cut could leave a disk."""
