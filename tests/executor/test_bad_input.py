"""What a person who cannot run something is told, in one line, before anything is taken."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file  # pyright: ignore[reportUnknownVariableType]

from executor import devices, factory
from executor.plan import Plan, plan
from executor.vmm.books import Live
from executor.vmm.faulty import Fault, FaultyDriver
from executor.vmm.memfd import MemfdDriver
from policies.errors import DeviceFailed
from policies.setup import Serving
from policies.types import GIB
from tests.engine.recorder import Recorder
from tests.executor.backend.stage import Setting, burst, make_engine, open_books, plan_of
from tests.executor.vmm.worlds import open_cuda


def planned(setting: Setting, **changed: object) -> Plan:
    ledger, lanes = open_books(setting)
    arguments: dict[str, object] = {
        "vmm": "range", "preemption": "recompute", "lendable": [(), ()], "weights": {}, "seed": 0, **changed
    }  # fmt: skip
    serving = arguments.pop("serving", setting.serving)
    layouts = [lane.layout for lane in lanes]
    return plan(setting.served, ledger, layouts, setting.hardware, serving, **arguments)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"vmm": "page"}, "backend.vmm=page: the executor maps a whole layer at once; choose alias or range"),
        ({"weights": {"gpt": "folder"}}, "backend.weights names gpt; the mix has opt, llama"),
        ({"weights": {"opt": "nowhere"}}, "nowhere has no config.json"),
        ({"serving": Serving(max_num_seqs=257)}, "serving.max_num_seqs=257 exceeds the 256 sequences"),
        (
            {"serving": Serving(prefix_caching=True)},
            "serving.prefix_caching: V0 may count blocks that are gone; set serving.scheduler=vllm_v1",
        ),
    ],
)
def test_what_cannot_be_served_is_refused(changed: dict[str, object], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        planned(Setting(), **changed)


def opt_folder(folder: Path, **changed: object) -> Path:
    """A folder of weights for the stage's OPT, with other numbers if asked for."""
    config = {
        "model_type": "opt", "hidden_size": 64, "num_attention_heads": 2, "word_embed_proj_dim": 64, "ffn_dim": 128,
        "vocab_size": 128, "max_position_embeddings": 256, "num_hidden_layers": 5, **changed,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    save_file({"model.decoder.final_layer_norm.weight": torch.ones(64)}, folder / "model.safetensors")
    return folder


def test_weights_of_another_model_are_refused(tmp_path: Path) -> None:
    folder = opt_folder(tmp_path, num_hidden_layers=6)
    with pytest.raises(ValueError, match="its n_layers is 6, model opt has 5; name the folder of that model"):
        planned(Setting(), weights={"opt": str(folder)})


def test_a_truncated_file_of_weights_is_refused(tmp_path: Path) -> None:
    path = opt_folder(tmp_path) / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(ValueError, match=r"model.safetensors cannot be read, fetch it again"):
        planned(Setting(), weights={"opt": str(tmp_path)})


def test_a_missing_tensor_is_found_when_it_is_wanted_and_nothing_is_left(tmp_path: Path) -> None:
    wanted = planned(Setting(), weights={"opt": str(opt_folder(tmp_path))})
    with (
        pytest.raises(ValueError, match=r"no file holds model\.decoder\.embed_tokens\.weight"),
        factory.open_backend("memfd", wanted),
    ):
        pass


@pytest.mark.skipif(torch.version.cuda is not None, reason="this torch knows CUDA")
def test_a_torch_without_cuda_cannot_run_on_a_gpu() -> None:
    with pytest.raises(ValueError, match="was built without CUDA; run with backend=memfd"):
        factory.check("cuda", planned(Setting()))


def test_a_host_with_too_little_memory_is_told_how_much_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "_available_bytes", lambda: GIB // 2)
    with pytest.raises(ValueError, match=r"1\.0 GiB of host memory have to be pinned .*, 0\.5 GiB are available"):
        devices.refuse_too_little_host_memory(GIB)


def test_the_limit_of_a_control_group_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "max").write_text("4096\n")
    monkeypatch.setattr(devices, "CGROUP", tmp_path / "max")
    with pytest.raises(ValueError, match="have to be pinned"):
        devices.refuse_too_little_host_memory(4097)
    devices.refuse_too_little_host_memory(4096)


def test_hbm_that_is_too_small_is_a_line_and_nothing_is_left() -> None:
    setting = Setting()
    wanted = plan_of(setting, *open_books(setting))
    small = replace(wanted, hardware=replace(wanted.hardware, hbm_bytes=setting.hardware.page_bytes * 8))
    with (
        pytest.raises(ValueError, match=r"opt, llama want .* GiB of HBM .*lower the shares or lend fewer layers"),
        factory.open_backend("memfd", small),
    ):
        pass


def with_peer(**changed: object) -> Plan:
    setting = replace(Setting(), tier="peer")
    return replace(plan_of(setting, *open_books(setting)), **changed)  # pyright: ignore[reportArgumentType]


def test_a_peer_that_is_too_small_for_the_master_copies_is_told_how_much_is_needed() -> None:
    wanted = with_peer()
    small = replace(wanted, hardware=replace(wanted.hardware, hbm_bytes=wanted.peer_bytes - 1))
    with pytest.raises(ValueError, match=r"backend\.peer=1: master copies need .* GiB of its memory, .*tier=host"):
        factory.check("memfd", small)
    assert wanted.host_bytes == 0  # nothing is pinned for them


@pytest.mark.gpu
def test_a_peer_that_is_not_there_is_a_line() -> None:
    open_cuda().close()
    with pytest.raises(ValueError, match=r"backend\.peer=99: there is no GPU 99; .* name another GPU, or set"):
        factory.check("cuda", with_peer(peer=99))


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Callable[[], FaultyDriver]:
    """Put a driver that fails on command in the place of the real one; call it for the one that was opened."""
    opened: list[FaultyDriver] = []

    def open_driver(_world: str, hardware: object, _index: int) -> FaultyDriver:
        del hardware
        opened.append(FaultyDriver(MemfdDriver(Setting().hardware.hbm_bytes)))
        return opened[-1]

    monkeypatch.setattr(factory, "open_driver", open_driver)
    return lambda: opened[-1]


def test_a_driver_that_fails_ends_the_run_in_a_line_and_nothing_is_left(watched: Callable[[], FaultyDriver]) -> None:
    setting = Setting()
    ledger, lanes = open_books(setting)

    def run() -> None:
        with factory.open_backend("memfd", plan_of(setting, ledger, lanes)) as backend:
            watched().set_fault(Fault(nth=0, call="unmap"))
            make_engine(setting, ledger, lanes, backend, Recorder()).run(iter(burst()))

    with pytest.raises(DeviceFailed, match="the run cannot go on: unmap failed with 999"):
        run()
    assert watched().live == Live()


def test_a_driver_without_memory_for_mappings_makes_the_policy_think_again(
    watched: Callable[[], FaultyDriver],
) -> None:
    setting = Setting()
    ledger, lanes = open_books(setting)
    journal = Recorder()
    with factory.open_backend("memfd", plan_of(setting, ledger, lanes)) as backend:
        watched().set_fault(Fault(nth=0, call="map", out_of_memory=True))
        make_engine(setting, ledger, lanes, backend, journal).run(iter(burst()))
    assert [each.refused for each in journal.decisions].count(True) == 1
    assert any(each.changed for each in journal.decisions)
    assert watched().live == Live()


@pytest.mark.parametrize("call", ["create", "map", "allow_access", "reserve", "pin"])
def test_a_driver_that_fails_while_models_are_loaded_leaves_nothing(
    call: str, watched: Callable[[], FaultyDriver], monkeypatch: pytest.MonkeyPatch
) -> None:
    setting = Setting()
    wanted = plan_of(setting, *open_books(setting))
    real = factory.open_driver

    def open_faulty(world: devices.World, hardware: object, index: int) -> object:
        driver = real(world, hardware, index)  # pyright: ignore[reportArgumentType]
        assert isinstance(driver, FaultyDriver)
        driver.set_fault(Fault(nth=3, call=call))
        return driver

    monkeypatch.setattr(factory, "open_driver", open_faulty)
    with pytest.raises(DeviceFailed, match=f"{call} failed"), factory.open_backend("memfd", wanted):
        pass
    assert watched().live == Live()


def test_an_interrupt_in_the_midst_of_a_run_leaves_nothing(watched: Callable[[], FaultyDriver]) -> None:
    setting = Setting()
    ledger, lanes = open_books(setting)

    def interrupts(*_: object) -> None:
        raise KeyboardInterrupt

    opened = factory.open_backend("memfd", plan_of(setting, ledger, lanes), watch=interrupts)
    with pytest.raises(KeyboardInterrupt), opened as backend:
        make_engine(setting, ledger, lanes, backend, Recorder()).run(iter(burst()))
    assert watched().live == Live()
