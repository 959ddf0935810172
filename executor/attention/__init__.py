"""Attention over a paged, block-major KV cache ``(n_blocks, n_layers, 2, block_tokens, n_kv_heads, head_dim)``.

Axis 2 holds K, then V. Block ids count from the first address of a model's KV range,
which may be mapped in part: nothing here touches a block that no table names.
"""
