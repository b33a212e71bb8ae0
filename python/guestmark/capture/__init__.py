"""Who is slow in a packet capture: the thin Python side of `guestmark-capture`."""
