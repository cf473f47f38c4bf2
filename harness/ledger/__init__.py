"""Track B: scenarios of the child ledger, its history, its judge, its demo."""
