"""Runs one plan on a lab of machines: an existing engine spreads the work, the ledger knows what is done."""
