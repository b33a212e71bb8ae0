"""The tests of guestmark; what they share is in `tests.framework`."""
