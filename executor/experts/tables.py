"""The address tables of every layer, which captured graphs read and changes of the boundary rewrite."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from executor.experts.packs import ExpertTable, PackLayout
from executor.memory.expert_memory import ExpertMemory
from policies.memory.experts import ExpertResidency

N_PARITIES = 2


class LiveTables:
    """Tables at fixed addresses. Of what is staged there are two versions, as the buffers take turns.

    Args:
        memory: where the experts are.
    """

    def __init__(self, memory: ExpertMemory) -> None:
        self._memory = memory
        extents, layout = memory.extents, memory.extents.start.layout
        base = memory.fixed(0)
        self._base_address = base.data_ptr()
        self._at_home = np.zeros((layout.n_layers, 2, layout.n_experts), dtype=np.int64)
        for layer in range(layout.n_layers):
            self._enter(self._at_home, layer, 0, extents.fixed(layer), memory.fixed(layer))
        for layer, first in extents.groups:
            self._enter(self._at_home, layer, first, extents.group, memory.home((layer, first)))
        self._versions = torch.from_numpy(np.stack([self._at_home] * N_PARITIES)).to(base.device, copy=True)
        self._live = self._versions[0].clone()
        self._shown: int | None = 0
        self.layers = tuple(ExpertTable(base.view(extents.spec.dtype), offsets) for offsets in self._live)

    def rewrite(self, buffer_of: Callable[[int, int], int]) -> None:
        """Work out the versions anew after the boundary has moved, on the current stream.

        Args:
            buffer_of: the staging buffer of a layer, by layer and parity of the step.
        """
        memory, group = self._memory, self._memory.extents.group
        versions = np.stack([self._at_home] * N_PARITIES)
        for layer, n_groups in enumerate(groups_by_layer(memory.experts)):
            for parity in range(N_PARITIES if n_groups else 0):
                buffer = memory.buffers[buffer_of(layer, parity)]
                for depth in range(n_groups):
                    first = memory.extents.start.layout.n_experts - (depth + 1) * group.n_experts
                    place = buffer[depth * group.n_bytes : (depth + 1) * group.n_bytes]
                    self._enter(versions[parity], layer, first, group, place)
        self._versions.copy_(_pinned(versions, self._versions.device), non_blocking=True)
        self._shown = None

    def show(self, parity: int) -> None:
        """Make a version the one that layers read, on the current stream; between two steps."""
        if parity != self._shown:
            self._live.copy_(self._versions[parity])
            self._shown = parity

    def _enter(self, offsets: np.ndarray, layer: int, first: int, layout: PackLayout, region: Tensor) -> None:
        pair = layout.offsets(region.data_ptr(), self._base_address)
        offsets[layer, :, first : first + layout.n_experts] = pair


def groups_by_layer(experts: ExpertResidency) -> list[int]:
    """Groups of each layer that are offloaded."""
    return [n_shards // experts.layout.group_shards for n_shards in experts.shards_by_layer]


def _pinned(numbers: np.ndarray, device: torch.device) -> Tensor:
    there = torch.from_numpy(numbers)
    return there.pin_memory() if device.type == "cuda" else there
