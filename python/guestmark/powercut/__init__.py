"""Determines what survives a power cut: replays logs of writes to every state in which a cut could leave a disk."""
