"""What the tests share: a small model's shape, rows, an artefact fitted to them."""

import numpy as np
import oscar_kv
import pytest

SHAPE = oscar_kv.ModelShape(2, 4, 2, 64, 64)
NUM_PAIRS = 32
SCALE = 0.125


def inv_freq() -> np.ndarray:
    return (10000.0 ** (-np.arange(NUM_PAIRS) / NUM_PAIRS)).astype(np.float32)


def make_rows(seed: int, num_tokens: int, num_heads: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((num_tokens, num_heads, 64), np.float32)


def collect(num_tokens: int = 700, rope: oscar_kv.Rope | None = None) -> oscar_kv.Collector:
    collector = oscar_kv.Collector()
    for layer in range(SHAPE.num_layers):
        collector.add(
            layer,
            queries=make_rows(10 * layer, num_tokens, 4) + np.linspace(0, 1, 64),
            keys=make_rows(10 * layer + 1, num_tokens, 2) + np.linspace(-1, 1, 64),
            values=make_rows(10 * layer + 2, num_tokens, 2) * np.linspace(0.1, 2, 64),
            outputs=make_rows(10 * layer + 3, num_tokens, 4) * np.linspace(0.1, 2, 64),
            positions=np.arange(num_tokens),
            scale=SCALE,
            rope=rope,
        )
    return collector


@pytest.fixture(scope="session")
def artefact() -> oscar_kv.Artefact:
    rope = oscar_kv.Rope(inv_freq())
    return collect(rope=rope).fit("oscar-plus", architecture="llama", weights_hash="abc")


def attend_exactly(q, keys, values, scale, sliding_window=0, sinks=None):
    """Causal attention in float64: q [T, Hq, d] are the last of keys, values [S, Hkv, d]."""
    groups = q.shape[1] // keys.shape[1]
    q, keys, values = (x.astype(np.float64) for x in (q, keys, values))
    k, v = np.repeat(keys, groups, axis=1), np.repeat(values, groups, axis=1)
    logits = np.einsum("qhd,khd->hqk", q, k) * scale
    here = np.arange(len(k) - len(q), len(k))[:, None]
    distance = here - np.arange(len(k))[None]
    hidden = distance < 0
    if sliding_window:
        hidden |= distance >= sliding_window
    logits[:, hidden] = -np.inf
    weights = np.exp(logits)
    total = weights.sum(axis=2, keepdims=True)
    if sinks is not None:
        total = total + np.exp(np.asarray(sinks, np.float64))[:, None, None]
    out = np.einsum("hqk,khd->qhd", weights / total, v)
    return out, np.log(total[..., 0]).T


def relative_error(a, b) -> float:
    return float(np.linalg.norm(np.asarray(a, np.float64) - b) / np.linalg.norm(b))
