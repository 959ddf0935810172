"""Measures a device as the executor uses it: the same kernels, graphs, streams, mappings and loop."""
