"""Torch tensors over addresses, without a copy and without a look at what is behind them."""

from __future__ import annotations

import ctypes

import torch


class _DeviceBytes:
    """Bytes of a device as numba and torch exchange them (CUDA array interface, version 3)."""

    def __init__(self, address: int, n_bytes: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (n_bytes,),
            "typestr": "|u1",
            "data": (address, False),
            "strides": None,
            "stream": None,
            "version": 3,
        }


def tensor_over(address: int, n_bytes: int, device: str) -> torch.Tensor:
    """View ``n_bytes`` from ``address`` as uint8, shape ``(n_bytes,)``.

    Parts of the range may have nothing behind them, then or later: only touching them
    faults. The tensor owns nothing; it must not be used once the range is given back.
    A view of another dtype is ``tensor.view(dtype)``.

    Args:
        device: ``cpu``, or a GPU with its index: for a mere ``cuda`` torch would ask the
            driver about the first byte, which then had to be mapped.
    """
    if n_bytes == 0:
        return torch.empty(0, dtype=torch.uint8, device=device)
    if device == "cpu":
        return torch.frombuffer((ctypes.c_uint8 * n_bytes).from_address(address), dtype=torch.uint8)
    return torch.as_tensor(_DeviceBytes(address, n_bytes), device=device)
