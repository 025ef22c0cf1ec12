"""An `oscar-plus` artefact of a model's shape, fitted to random rows.

For speed alone: it has what the artefact of a real model has, a matrix for every layer and KV head
and a key mean before RoPE, and stands for no model's weights.
"""

import os
import pathlib
from typing import Any

import numpy as np
from oscar_kv.artefact import Rope
from oscar_kv.calibration import Collector

SEED = 1
TOKENS = 512
MEAN_RATIO = 2.0  # of the first pair's mean to its deviation; it falls by e in eight pairs


def save_random_artefact(config: dict[str, Any], path: pathlib.Path) -> None:
    """config: of the model, as in its config.json."""
    head_dim, num_kv_heads = config["head_dim"], config["num_key_value_heads"]
    num_q_heads = config["num_attention_heads"]
    pairs = head_dim // 2
    inv_freq = (config["rope_theta"] ** -(np.arange(pairs) / pairs)).astype(np.float32)
    positions = np.arange(TOKENS, dtype=np.int32)
    random = np.random.default_rng(SEED)

    def normal(*shape: int) -> np.ndarray:
        return random.standard_normal(shape, np.float32)

    collector = Collector(SEED)
    for layer in range(config["num_hidden_layers"]):
        spread = np.exp(0.5 * normal(num_kv_heads, head_dim))  # of each channel
        mean = (
            MEAN_RATIO * spread * np.exp(-(np.arange(head_dim) % pairs) / 8) * normal(1, head_dim)
        )
        keys = spread * normal(TOKENS, num_kv_heads, head_dim) + mean
        collector.add(
            layer,
            queries=rotated(normal(TOKENS, num_q_heads, head_dim), positions, inv_freq),
            keys=rotated(keys.astype(np.float32), positions, inv_freq),
            values=normal(TOKENS, num_kv_heads, head_dim),
            outputs=normal(TOKENS, num_q_heads, head_dim),
            positions=positions,
            scale=head_dim**-0.5,
            rope=Rope(inv_freq),
        )
    artefact = collector.fit("oscar-plus", architecture="qwen3", num_threads=os.cpu_count() or 1)
    artefact.save(path)


def rotated(rows: np.ndarray, positions: np.ndarray, inv_freq: np.ndarray) -> np.ndarray:
    """Rows after RoPE, channels f and f + pairs turned together."""
    angles = positions[:, None, None] * inv_freq
    cos, sin = np.cos(angles), np.sin(angles)
    low, high = np.split(rows, 2, axis=-1)
    return np.concatenate([low * cos - high * sin, high * cos + low * sin], -1).astype(np.float32)
