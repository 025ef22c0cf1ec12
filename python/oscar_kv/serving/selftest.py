"""At start: does this machine compute what the method says? A wrong kernel must not serve."""

import numpy as np
import torch

from oscar_kv.codec import PAGE_TOKENS
from oscar_kv.errors import InternalError
from oscar_kv.serving.copies import CopyBook
from oscar_kv.serving.cpu_layer import CpuLayer, CpuStep
from oscar_kv.serving.method import ServedMethod
from oscar_kv.serving.windows import Windows

NUM_TOKENS = 150
TABLE = (2, 0, 1)
# Queries of 16 bits, results of BF16 copies: each at most 2^-8 of its part.
TOLERANCE = 2.0**-6


def dense(
    q: np.ndarray, keys: np.ndarray, values: np.ndarray, scale: float, first: int
) -> np.ndarray:
    """Causal softmax attention in float64: q [T, Hq, d] of tokens first, first + 1, ..."""
    groups = q.shape[1] // keys.shape[1]
    keys, values = (np.repeat(x.astype(np.float64), groups, axis=1) for x in (keys, values))
    logits = np.einsum("qhd,khd->hqk", q.astype(np.float64), keys) * scale
    after = np.arange(len(keys)) > first + np.arange(len(q))[:, None]
    logits[:, after] = -np.inf
    weights = np.exp(logits - logits.max(axis=2, keepdims=True))
    weights /= weights.sum(axis=2, keepdims=True)
    return np.einsum("hqk,khd->qhd", weights, values)


def check_cpu_layer(served: ServedMethod, layer: int = 0) -> float:
    """Writes and attends one sequence; raises InternalError where the result is wrong.

    Returns the relative error against float64 on what the codes stand for.
    """
    shape, random = served.shape, np.random.default_rng(1)
    codec = served.codec(layer, NUM_TOKENS)
    windows = Windows.of(16, 32)
    pools = [
        torch.zeros(windows.rows_per_block, shape.num_kv_heads, size, dtype=torch.bfloat16)
        for size in (shape.head_dim_k, shape.head_dim_v)
    ]
    tested = CpuLayer(codec, windows, *pools, torch.zeros(1, dtype=torch.int32))
    keys, values = (
        torch.from_numpy(
            random.standard_normal((NUM_TOKENS, shape.num_kv_heads, size), np.float32)
        ).to(torch.bfloat16)
        for size in (shape.head_dim_k, shape.head_dim_v)
    )
    q = torch.from_numpy(
        random.standard_normal((NUM_TOKENS, shape.num_q_heads, shape.head_dim_k), np.float32)
    )
    positions = np.arange(NUM_TOKENS, dtype=np.int32)
    table = np.array([TABLE], np.int32)
    slots = table[0, positions // PAGE_TOKENS].astype(np.int64) * PAGE_TOKENS
    slots += positions % PAGE_TOKENS
    pages = np.zeros((len(TABLE), codec.page_bytes), np.uint8)
    book = CopyBook(1, windows.sink_tokens, windows.recent_tokens, windows.ring_tokens, len(TABLE))
    # Engines set another default type while a model is loaded.
    out = torch.empty(NUM_TOKENS, shape.num_q_heads, shape.head_dim_v, dtype=torch.float32)
    scale = shape.head_dim_k**-0.5
    for begin, end in ((0, NUM_TOKENS - 1), (NUM_TOKENS - 1, NUM_TOKENS)):
        starts, lengths = np.array([0, end - begin]), np.array([end])
        arrays = (np.zeros(1, np.int64), starts, lengths, table, slots[begin:end])
        copies = book.step(*map(torch.from_numpy, arrays))
        step = CpuStep(
            *(starts, lengths, table, positions[begin:end], slots[begin:end]),
            *(np.zeros(1, np.int64), copies),
        )
        rows = [x[begin:end] for x in (keys, values)]
        tested.write(*rows, step, pages)
        tested.attend(q[begin:end], *rows, step, pages, out[begin:end], scale=scale)

    k_coded = codec.decode_keys(codec.encode_keys(keys.float().numpy(), positions), positions)
    v_coded = codec.decode_values(codec.encode_values(values.float().numpy()))
    worst = 0.0
    for token in (0, 20, NUM_TOKENS - 2, NUM_TOKENS - 1):
        exact = (positions < windows.sink_tokens) | (positions > token - windows.recent_tokens)
        exact = exact[:, None, None]
        k, v = (
            np.where(exact, x.float().numpy(), coded)[: token + 1]
            for x, coded in ((keys, k_coded), (values, v_coded))
        )
        truth = dense(q[token : token + 1].numpy(), k, v, scale, token)
        error = np.linalg.norm(out[token].numpy() - truth[0]) / np.linalg.norm(truth)
        worst = max(worst, float(error))
    if not worst < TOLERANCE:
        raise InternalError(
            f"self-test of {served.kv}: attention is off by {worst:.3g} of its size; right: below "
            f"{TOLERANCE:.3g}; OSCAR_CPU=scalar takes the plainest kernels"
        )
    return worst
