"""Guests inside a QEMU guest that guestmark starts for them."""
