"""Runs one plan on a lab of machines: the engine Parsl distributes the work, and the ledger records what is done."""
