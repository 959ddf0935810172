"""``python -m sim models [MODEL ...]``: the catalogue, or what follows from a Hugging Face ``config.json``."""

from __future__ import annotations

import json
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict

from conf.cli import Refused
from conf.models import Named, catalogue, named
from policies.types import GIB, KIB, MIB
from traces.hf.model import HfModel
from traces.hf.parts import Layer

EXAMPLES = """
examples:
  python -m sim models                                 every model of the catalogue
  python -m sim models opt_13b ./Qwen3-8B/config.json  sizes of these, derived from the config where it is one
"""


def main(arguments: Sequence[str]) -> int:
    """Carry out ``models``.

    Raises:
        Refused: there is no such model, or its config cannot be used.
    """
    parser = ArgumentParser(
        prog="python -m sim models",
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=RawDescriptionHelpFormatter,
    )
    parser.add_argument("models", nargs="*", metavar="MODEL", help="of the catalogue, a config.json, or its folder")
    parser.add_argument("--json", action="store_true", help="write JSON")
    given = parser.parse_args(arguments)
    try:
        found = [named(model) for model in given.models or catalogue()]
    except ValueError as mistake:
        raise Refused(str(mistake)) from None
    if given.json:
        print(json.dumps({model.key: asdict(model.shape) for model in found}, indent=2))
    else:
        print("\n".join(_lines(found)))
    return 0


def _lines(found: Sequence[Named]) -> Iterator[str]:
    heads = f"{'layers':>6} {'layer MiB':>10} {'expert MiB':>10} {'all GiB':>8} {'KV KiB/token':>12} {'context':>8}"
    yield f"{'':<20} {heads}"
    for model in found:
        shape = model.shape
        expert = "" if shape.mixture is None else f"{shape.mixture.expert_bytes / MIB:.4g}"
        yield (
            f"{model.key:<20} {shape.n_layers:>6} {shape.layer_bytes / MIB:>10.1f} {expert:>10} "
            f"{shape.total_bytes / GIB:>8.1f} {shape.kv_bytes_per_token / KIB:>12.5g} {shape.max_context_tokens:>8}"
        )
    for model in found:
        if model.derived is not None:
            yield from _derivation(model.derived)


def _derivation(model: HfModel) -> Iterator[str]:
    """How the sizes follow from a config."""
    parts, shape = model.parts, model.shape
    yield f"\n{model.path} ({model.model_type}): {parts.n_params:,} parameters"
    for layer, n in Counter(parts.layers).items():
        yield f"  {n} layers of {_layer(layer)}"
    if parts.experts is not None and shape.mixture is not None:
        yield (
            f"  experts of {parts.experts.params:,} parameters, {shape.mixture.expert_bytes:,} bytes; a token goes to "
            f"{parts.experts.n_active}"
        )
    yield f"  {parts.outside:,} outside the layers: embeddings, last norm, head; they never move"
    yield (
        f"  {float(model.bits.layer):.4g} bits a weight in the layers"
        + (f", {float(model.bits.expert):.4g} in the experts" if parts.experts else "")
        + f"; {shape.layer_bytes:,} bytes a layer{' (mean)' if len(set(parts.layers)) > 1 else ''}; "
        f"{shape.kv_bytes_per_token:,} bytes of KV cache a token"
    )
    if any(layer.window_tokens for layer in parts.layers):
        yield "  layers with a window: their whole cache is counted, as if it were kept"


def _layer(layer: Layer) -> str:
    counted = {
        "attention": layer.mixer if layer.n_cached else 0,
        "delta-net": 0 if layer.n_cached else layer.mixer,
        "MLP": layer.mlp,
        "router": layer.router,
        "norms": layer.norms,
    }
    told = ", ".join(f"{name} {n:,}" for name, n in counted.items() if n)
    return f"{told}" + (f", {layer.n_experts} experts" if layer.n_experts else "")
