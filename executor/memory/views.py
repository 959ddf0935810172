"""The tensors of one model: made once, over addresses that do not change."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass

import torch

from executor.memory.masters import Masters
from executor.memory.ranges import ModelRanges
from executor.memory.tensors import tensor_over
from executor.vmm.driver import Driver


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ModelViews:
    """Bytes (uint8) of one model; everything but ``masters`` on the device.

    Attributes:
        weights: by home, shape ``(region_bytes,)``.
        kv: the whole KV range, shape ``(n_block_ids, block_bytes)``, most of it without pages behind it.
        masters: by lendable layer, shape ``(region_bytes,)``, in the memory of their tier.
    """

    weights: tuple[torch.Tensor, ...]
    kv: torch.Tensor
    masters: Mapping[int, torch.Tensor]


def open_views(driver: Driver, masters: Masters, ranges: ModelRanges, closing: ExitStack) -> ModelViews:
    """View what a model has, and allocate its master copies.

    Args:
        closing: frees the master copies.

    Raises:
        DriverError: the driver refused; what had been made is in ``closing``.
    """
    extents, device = ranges.extents, driver.device
    kv_bytes = extents.n_block_ids * extents.block_bytes
    return ModelViews(
        weights=tuple(
            tensor_over(ranges.homes.address + home * extents.home_bytes, extents.region_bytes, device)
            for home in range(extents.n_homes)
        ),
        kv=tensor_over(ranges.kv.address, kv_bytes, device).view(extents.n_block_ids, extents.block_bytes),
        masters={layer: masters.new(extents.region_bytes, closing) for layer in sorted(extents.lendable)},
    )
