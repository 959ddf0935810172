"""Decoder stacks (OPT, Llama) whose layers run from any place in HBM, over a paged KV cache."""
