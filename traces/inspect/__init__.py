"""What is in a trace file, and everything odd about it: ``python -m traces inspect``."""
