"""Compute times in integer nanoseconds, from several sources behind one Protocol."""
