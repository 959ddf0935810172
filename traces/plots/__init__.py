"""Figures of runs: latencies, sweeps, who holds HBM, and the papers' forms."""
