"""Runs one plan on a lab of machines: an existing engine distributes the work, and the ledger knows what is done."""
