"""Tensor-parallel ranks: rank 0 decides and tells, all of them carry out, a change only if none refuses."""
