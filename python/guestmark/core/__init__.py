"""The types that all packages share. Nothing here imports another package of guestmark."""
