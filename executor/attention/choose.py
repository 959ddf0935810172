"""Which attention kernels a device gets."""

from __future__ import annotations

import torch

from executor.attention.kernels import AttentionKernels
from executor.attention.sdpa import SdpaKernels


def kernels_for(device: torch.device) -> AttentionKernels:
    """Return the fastest kernels for a device: Triton's on a GPU, the reference elsewhere.

    Raises:
        ValueError: the device is a GPU and Triton is not installed.
    """
    if device.type != "cuda":
        return SdpaKernels()
    try:
        from executor.attention.triton_paged import TritonKernels  # only GPU machines need to have Triton
    except ImportError as error:
        raise ValueError(f"attention on {device} needs Triton ({error}): pip install triton") from None
    return TritonKernels()
