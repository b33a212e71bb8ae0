"""A lab of machines that run one plan: an existing engine spreads the work, the ledger says what is done."""
