"""Who holds which HBM: residencies, the ops between them, the ledger, and which block ids there are."""
