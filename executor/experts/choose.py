"""Which kernels run the experts on a device."""

from __future__ import annotations

import torch

from executor.experts.kernels import ExpertKernels
from executor.experts.loop import LoopKernels


def expert_kernels_for(device: torch.device) -> ExpertKernels:
    """Return the fastest kernels for a device: Triton's on a GPU, the reference elsewhere.

    Raises:
        ValueError: the device is a GPU and Triton is not installed.
    """
    if device.type != "cuda":
        return LoopKernels()
    try:
        from executor.experts.triton_grouped import TritonExperts  # only GPU machines need to have Triton
    except ImportError as error:
        raise ValueError(f"experts on {device} need Triton ({error}): pip install triton") from None
    return TritonExperts()
