"""Which pairs of frequencies of the keys' mean attention puts back: all, or those with most of it.

A mean is spread over most pairs (docs/kernels/cuda-decode.md), so leaving some in the keys costs
quality; it makes decoding on a GPU faster.
"""

import numpy as np

from oscar_kv.artefact import Artefact, Rope
from oscar_kv.codec import Side


def channels_of(rope: Rope) -> tuple[np.ndarray, np.ndarray]:
    """First and second channel of each pair."""
    pairs = np.arange(len(rope.inv_freq))
    if rope.pairing == "half_split":
        return pairs, pairs + len(pairs)
    return 2 * pairs, 2 * pairs + 1


def limit_mean(artefact: Artefact, num_pairs: int) -> tuple[Artefact, float]:
    """The artefact with at most num_pairs pairs of each layer's key mean: those with most of it.

    Returns it and the least share of a layer's squared mean that is kept.
    """
    tensors, least, ropes = dict(artefact.tensors), 1.0, artefact.ropes
    for layer, index in zip(artefact.layers, artefact.layer_ropes, strict=True):
        mean = tensors.get(f"layers.{layer}.k_mean")
        if mean is None or index < 0 or len(ropes[index].inv_freq) <= num_pairs:
            continue
        first, second = channels_of(ropes[index])
        energy = (mean[:, first] ** 2 + mean[:, second] ** 2).sum(0)
        if not energy.any():
            continue
        dropped = np.argsort(-energy, kind="stable")[num_pairs:]
        kept = mean.copy()
        kept[:, first[dropped]] = kept[:, second[dropped]] = 0
        tensors[f"layers.{layer}.k_mean"] = kept
        least = min(least, 1 - float(energy[dropped].sum() / energy.sum()))
    if least == 1.0:
        return artefact, 1.0
    return Artefact(tensors, artefact.metadata), least


def pairs_of(side: Side) -> np.ndarray:
    """Pairs that hold any of the mean."""
    if side.mean is None or side.rope is None:
        return np.zeros(0, np.int64)
    first, second = channels_of(side.rope)
    return np.flatnonzero((side.mean[:, first] ** 2 + side.mean[:, second] ** 2).sum(0))


def common_pairs(sides: list[Side]) -> int:
    """Pairs that the plan of all layers takes: an even number; 0 where no layer has a mean."""
    if all(side.mean is None for side in sides):
        return 0
    most = max(len(pairs_of(side)) for side in sides)
    return max(2, most + most % 2)
