"""How the weights of one layer lie in one contiguous byte region, at whatever address."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

REGION_ALIGNMENT_BYTES = 256
"""A region starts at a multiple of this. cuBLASLt is told the alignment of each operand, up to 256 bytes, and may
choose another kernel for another alignment: with this, a layer gives the same bits from every place.
Source: PyTorch, aten/src/ATen/cuda/CUDABlas.cpp, ``_getAlignment``."""

TENSOR_ALIGNMENT_BYTES = 16
"""Each tensor starts at a multiple of this, the widest access of one thread. In every real model the
sizes see to it, and nothing is lost."""


@dataclass(frozen=True, slots=True)
class Field:
    """One tensor of a layer: where it starts in the region, in bytes, and its shape."""

    offset_bytes: int
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerLayout:
    """Every tensor of a layer in one region of ``n_bytes`` bytes."""

    fields: Mapping[str, Field]
    dtype: torch.dtype
    n_bytes: int

    @classmethod
    def packed(cls, shapes: Mapping[str, tuple[int, ...]], dtype: torch.dtype) -> LayerLayout:
        """Lay tensors one behind the other, in the order given."""
        fields: dict[str, Field] = {}
        end = 0
        for name, shape in shapes.items():
            start = -(-end // TENSOR_ALIGNMENT_BYTES) * TENSOR_ALIGNMENT_BYTES
            fields[name] = Field(start, shape)
            end = start + prod(shape) * dtype.itemsize
        return cls(fields=fields, dtype=dtype, n_bytes=end)

    def views(self, region: Tensor) -> dict[str, Tensor]:
        """Look at a region as the tensors of a layer; nothing is copied.

        Args:
            region: (>= n_bytes,) uint8, contiguous, on any device; it owns the memory.

        Raises:
            ValueError: the region is too small, not bytes, or starts at an odd address.
        """
        if region.dtype != torch.uint8 or region.dim() != 1 or not region.is_contiguous():
            raise ValueError(f"a layer's region must be contiguous bytes, not {region.dtype} {tuple(region.shape)}")
        if region.numel() < self.n_bytes:
            raise ValueError(f"a layer needs {self.n_bytes} bytes, its region has {region.numel()}")
        if region.data_ptr() % REGION_ALIGNMENT_BYTES:
            raise ValueError(f"region at {region.data_ptr():#x} is not aligned to {REGION_ALIGNMENT_BYTES} bytes")
        return {name: self._view(region, field) for name, field in self.fields.items()}

    def _view(self, region: Tensor, field: Field) -> Tensor:
        end = field.offset_bytes + prod(field.shape) * self.dtype.itemsize
        return region[field.offset_bytes : end].view(self.dtype).view(field.shape)


def new_region(n_bytes: int, device: torch.device) -> Tensor:
    """Allocate a region of ``n_bytes`` uninitialised bytes that starts at an aligned address."""
    room = torch.empty(n_bytes + REGION_ALIGNMENT_BYTES, dtype=torch.uint8, device=device)
    skip = -room.data_ptr() % REGION_ALIGNMENT_BYTES
    return room[skip : skip + n_bytes]
