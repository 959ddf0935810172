"""Bytes in motion: streams and what waits for what on them, slots that are filled ahead, KV that is swapped out."""
