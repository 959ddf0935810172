"""Who holds which HBM: residencies, the ops between them, the ledger, and the relief of a short pool."""
