"""Several models that run at once on one simulated GPU: MPS and MIG."""
