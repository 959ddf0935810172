"""What ``python -m sim plan`` does: up to which rate each policy keeps a promise, and what binds it."""
