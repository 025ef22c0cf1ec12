"""Which RoPE each layer has, found by trying: whatever a model calls its parts, a key at position
p + s must be the key at p turned by s."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from oscar_kv.artefact import PAIRINGS, Rope
from oscar_kv.transformers.capture import capturing

PROBE_TOKENS, PROBE_SHIFT = 24, 11
# Relative error of a shifted key. BF16 models reach about 0.01 (2^-8 a rounding, some layers deep);
# a wrong pairing or base is off by about 1.
MOST_ERROR = 0.05
# Their frequencies change with the length of the text, so one table does not describe them.
CHANGING = ("dynamic", "longrope")


def candidates(model: Any) -> list[Rope]:
    """Every rotary frequency table of the model, in both pairings."""
    found: list[Rope] = []
    for module in model.modules():
        if any(kind in str(getattr(module, "rope_type", "")) for kind in CHANGING):
            continue
        for name, buffer in module.named_buffers(recurse=False):
            if not name.endswith("inv_freq") or "original" in name:
                continue
            scaling = getattr(module, name.replace("inv_freq", "attention_scaling"), 1.0)
            table = buffer.detach().float().cpu().numpy()
            for pairing in PAIRINGS:
                rope = Rope(table, pairing, float(scaling))
                if not any(same(rope, other) for other in found):
                    found.append(rope)
    return found


def same(a: Rope, b: Rope) -> bool:
    return (
        a.pairing == b.pairing
        and a.magnitude == b.magnitude
        and np.array_equal(a.inv_freq, b.inv_freq)
    )


def turned(keys: np.ndarray, rope: Rope, shift: int) -> np.ndarray:
    """keys [..., head_dim] turned by `shift` positions more; the magnitude is in them already."""
    num_pairs = len(rope.inv_freq)
    angles = rope.inv_freq.astype(np.float64) * shift
    cos, sin = np.cos(angles), np.sin(angles)
    pairs = np.arange(num_pairs)
    interleaved = rope.pairing == "interleaved"
    first = 2 * pairs if interleaved else pairs
    second = first + (1 if interleaved else num_pairs)
    out = keys.astype(np.float64)
    a, b = out[..., first].copy(), out[..., second].copy()
    out[..., first], out[..., second] = a * cos - b * sin, a * sin + b * cos
    return out


def layer_ropes(model: Any) -> dict[int, Rope | None]:
    """Layer index → its RoPE; None where there is none, or no table of the model explains it."""
    tables = candidates(model)
    vocabulary = model.get_input_embeddings().num_embeddings
    tokens = (torch.arange(PROBE_TOKENS, device=model.device) * 37 + 11) % vocabulary
    runs: list[dict[int, np.ndarray]] = []
    for shift in (0, PROBE_SHIFT):
        keys: dict[int, np.ndarray] = {}

        def receive(
            layer: int, _q: Tensor, k: Tensor, *_: Any, keys: dict[int, np.ndarray] = keys
        ) -> None:
            keys[layer] = k.cpu().numpy()

        positions = torch.arange(PROBE_TOKENS, device=model.device)[None] + shift
        with capturing(model, receive):
            model(tokens[None], position_ids=positions, use_cache=False)
        runs.append(keys)
    found: dict[int, Rope | None] = {}
    for layer, here in runs[0].items():
        shifted = runs[1][layer]
        norm = float(np.linalg.norm(shifted))
        best, least = None, MOST_ERROR
        for rope in tables:
            if 2 * len(rope.inv_freq) > here.shape[-1]:
                continue
            error = float(np.linalg.norm(turned(here, rope, PROBE_SHIFT) - shifted)) / norm
            if error < least:
                best, least = rope, error
        if float(np.linalg.norm(here - shifted)) / norm <= least:
            best = None  # the layer has no positions in its keys
        found[layer] = best
    return found
