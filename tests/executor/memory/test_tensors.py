from __future__ import annotations

import pytest
import torch

from executor.memory.tensors import tensor_over
from executor.vmm.ranges import AddressRange
from tests.executor.vmm.worlds import WORLDS, World


@pytest.fixture(params=WORLDS)
def world(request: pytest.FixtureRequest) -> World:
    return request.param


def test_a_tensor_spans_holes_and_its_mapped_part_is_the_mapped_memory(world: World) -> None:
    driver = world.open()
    page = driver.granularity_bytes
    handle = driver.create(page)
    with AddressRange(driver, 2**36) as span:
        whole = tensor_over(span.address, span.n_bytes, driver.device)
        assert (whole.shape, whole.data_ptr()) == ((2**36,), span.address)
        for offset in (page, 2**36 - page):  # the first byte is never mapped
            span.back(offset, handle, page)
            part = whole[offset : offset + page]
            part.fill_(7)
            assert world.read(span.address + offset + page - 1, 1) == b"\7"
            span.unback(offset)
    driver.release(handle)
    driver.close()


def test_a_live_tensor_sees_what_is_mapped_under_it(world: World) -> None:
    driver = world.open()
    page = driver.granularity_bytes
    handles = [driver.create(page) for _ in range(2)]
    with AddressRange(driver, page) as span:
        tensor = tensor_over(span.address, page, driver.device)
        for value, handle in enumerate(handles):
            span.back(0, handle, page)
            tensor.fill_(value)
            _finish(tensor)
            span.unback(0)
        span.back(0, handles[0], page)
        assert int(tensor.sum(dtype=torch.int64).cpu()) == 0
    for handle in handles:
        driver.release(handle)
    driver.close()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_bytes_are_viewed_as_numbers_of_any_width_without_a_copy(world: World, dtype: torch.dtype) -> None:
    driver = world.open()
    page = driver.granularity_bytes
    handle = driver.create(page)
    with AddressRange(driver, page) as span:
        span.back(0, handle, page)
        numbers = tensor_over(span.address, page, driver.device).view(dtype)
        assert (numbers.data_ptr(), numbers.numel()) == (span.address, page // dtype.itemsize)
        numbers[-1] = 1.5
        _finish(numbers)
        raw = bytearray(world.read(span.address + page - dtype.itemsize, dtype.itemsize))
        assert torch.frombuffer(raw, dtype=dtype).item() == 1.5
    driver.release(handle)
    driver.close()


def test_no_bytes_are_an_empty_tensor() -> None:
    assert tensor_over(0, 0, "cpu").shape == (0,)


def _finish(tensor: torch.Tensor) -> None:
    """Wait for the device before its mappings change."""
    if tensor.is_cuda:
        torch.cuda.synchronize()
