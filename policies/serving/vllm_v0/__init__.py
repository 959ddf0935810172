"""vLLM 0.7.3's scheduler (the V0 engine), a queue a file."""
