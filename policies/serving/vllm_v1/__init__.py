"""vLLM 0.15.1's scheduler (the V1 engine), a phase a file."""
