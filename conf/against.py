"""``python -m sim validate --against DIR``: what a real vLLM server did, replayed, and the error of every figure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import cast

import yaml

from conf.cli import Refused
from sim.validation.compare import Compared, Tolerance, table
from sim.validation.replay import ModelSize, Replayed, replay
from sim.validation.served import (
    DEFAULT_TOLERANCES,
    SeriesError,
    compare_requests,
    compare_samples,
    series_table,
)
from traces.measured.layer_profile import LayerProfile, read_layer_profile
from traces.measured.server_log import ServerRun, read_server_run
from traces.results.folder import write_json

OUT_OF_TOLERANCE = 1

SIZES = Path(__file__).parent / "served_models.yaml"

VARIANT = re.compile(r"(-(instruct|base|chat|hf|it|thinking|v\d+(\.\d+)*|\d{4}))+", re.ASCII)
"""Endings of names that tell how a model was trained or when, not how large it is."""


def against(folder: Path, *, tolerances: Sequence[str], n_layers: int | None, out: Path | None) -> int:
    """Carry out the command; 1 if a figure is out of its tolerance.

    Args:
        tolerances: as ``--tolerance`` has them.
        n_layers: of the model, if it is not in ``conf/served_models.yaml``.
        out: where ``validate.json`` goes; ``None``: nowhere.

    Raises:
        Refused: a file is missing or faulty, or the run cannot be replayed.
    """
    try:
        allowed = _tolerances(tolerances)
        if n_layers is not None and n_layers < 1:
            raise ValueError(f"--layers {n_layers} must be at least 1")
        run = read_server_run(folder)
        profile = read_layer_profile(folder / "layer_profile", run.settings.n_ranks)
        replayed = replay(run, profile, size_of(run.settings.model, n_layers))
        figures = compare_requests(run.requests, replayed.requests, allowed)
        series = compare_samples(run.samples, replayed.samples, allowed)
    except ValueError as mistake:
        raise Refused(" ".join(str(mistake).split())) from None
    print(_heading(run, profile, replayed))
    print(table(figures))
    print(series_table(series) if series else "no timeseries.csv: nothing is known of the load over time")
    if out is not None:
        _write(out, run, replayed, figures, series)
    return OUT_OF_TOLERANCE if any(each.is_within is False for each in (*figures, *series)) else 0


def size_of(model: str, n_layers: int | None) -> ModelSize:
    """Find a model's number of layers.

    Raises:
        ValueError: nobody has said it.
    """
    known = _sizes().get(_plain(model))
    if n_layers is not None:
        return ModelSize(n_layers=n_layers, hidden=known and known.hidden, vocab=known and known.vocab)
    if known is None:
        raise ValueError(f"{model}: its number of layers is not known; give --layers N")
    return known


@cache
def _sizes() -> dict[str, ModelSize]:
    written = cast("dict[str, dict[str, int]]", yaml.safe_load(SIZES.read_text(encoding="utf-8")))
    return {_plain(model): ModelSize(**size) for model, size in written.items()}


def _plain(model: str) -> str:
    """Leave of a name, or of a path that ends in one, what tells the size: ``Qwen/Qwen3-8B-Base`` -> ``qwen3-8b``."""
    name = model.rstrip("/").rpartition("/")[2].lower()
    ending = VARIANT.search(name)
    return name[: ending.start()] if ending is not None and ending.end() == len(name) else name


def _tolerances(texts: Sequence[str]) -> dict[str, Tolerance]:
    """``PERCENT`` is for the three standard figures, ``NAME=PERCENT`` for one."""
    allowed = dict(DEFAULT_TOLERANCES)
    for text in texts:
        name, equals, percent = text.rpartition("=")
        try:
            tolerance = Tolerance(float(percent) / 100)
        except ValueError:
            raise ValueError(f"--tolerance {text} must be PERCENT or NAME=PERCENT, as in tpot_p99=5") from None
        allowed.update({name: tolerance} if equals else dict.fromkeys(DEFAULT_TOLERANCES, tolerance))
    return allowed


def _heading(run: ServerRun, profile: LayerProfile, replayed: Replayed) -> str:
    its = run.settings
    settings = [
        f"{its.n_blocks} blocks of {its.block_tokens} tokens",
        f"at most {its.max_num_seqs} requests and {its.max_num_batched_tokens} tokens a step",
    ]
    if its.n_ranks > 1:
        settings.append(f"{its.n_ranks} tensor-parallel ranks")
    if its.n_engines > 1:
        settings.append(f"{its.n_engines} engines")
    gpu = profile.about.get("gpu", "an unnamed GPU")
    served = f"vLLM {its.vllm_version} with {its.model} on {its.device}, {len(run.requests)} requests"
    return (
        f"{served}: {', '.join(settings)}\n"
        f"Replayed with its layers as measured on {gpu}: {replayed.n_steps} steps, "
        f"{replayed.n_preemptions} preemptions, {replayed.n_recomputed:,} tokens computed again, "
        f"{replayed.n_hits:,} found in the prefix cache"
    )


def _write(
    folder: Path, run: ServerRun, replayed: Replayed, figures: Sequence[Compared], series: Sequence[SeriesError]
) -> None:
    document = {
        "against": run.folder.name,
        "model": run.settings.model,
        "device": run.settings.device,
        "n_steps": replayed.n_steps,
        "n_preemptions": replayed.n_preemptions,
        "n_recomputed_tokens": replayed.n_recomputed,
        "n_hit_tokens": replayed.n_hits,
        "figures": [asdict(each) for each in figures],
        "series": [asdict(each) for each in series],
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / "validate.json", document)
    except OSError as error:
        raise Refused(f"cannot write {folder / 'validate.json'}: {error.strerror}; give another --out") from None
