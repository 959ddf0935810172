"""A run on a device beside its simulation: how far apart they are, and why."""
