"""Finds out who is slow in a packet capture: a thin Python wrapper around `guestmark-capture`."""
