"""Weights and KV cache on pages that change hands: homes, KV ranges, master copies, and ops carried out on them.

Of what the ledger (``policies/memory/ledger.py``) accounts, homes and the KV cache's own
pages come from here. Weights outside the layers and activations never change hands and
are ordinary tensors: torch's allocator takes them from the HBM that is left
(``Extents.torch_bytes`` of each model), and whoever opens the device bounds it to that.
"""
