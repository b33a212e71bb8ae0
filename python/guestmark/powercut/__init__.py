"""What survives a power cut: logs of writes are replayed to every state in which a cut could have left a disk."""
