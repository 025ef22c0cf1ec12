#!/usr/bin/env python3
"""Writes golden.txt: what each method stores and attends, from NumPy and docs/methods.md alone.

    python3 generate.py > golden.txt

One line a case:
  case SPEC head_dim kv_heads q_heads tokens KEY_BYTES VALUE_BYTES KEY_ROWS VALUE_ROWS OUTPUTS
The four hashes are 64-bit FNV-1a: of the stored bytes (keys: each full group, in order; values:
each token) and of the decoded rows before they are rotated back (single precision, little endian,
[token][head][channel]; keys that wait for their group are there exactly). OUTPUTS are numbers of
the attention of the last token, single precision as big-endian hex, sixteen of them.

Keys, values and queries are made by `sample`, which the test repeats; rotatekv's mean key too.
"""

import math

import numpy as np
from definitions import (
    kitty,
    kivi,
    naive,
    omniscale,
    ott,
    quarot,
    rotatekv,
    saw_int4,
    spinquant_had,
    turboquant,
)
from primitives import U64, F, bf16, rotate, sample


def fnv(data):
    state = 0xCBF29CE484222325
    for byte in data:
        state = ((state ^ byte) * 0x100000001B3) & U64
    return f"{state:016x}"


def stored(rows, coder, matrix):
    """The bytes of all full groups and the decoded rows, before they are rotated back."""
    if coder.group > 1:
        rows = bf16(rows)
    rotated = rotate(rows, matrix)
    data, decoded = b"", rotated.copy()
    for first in range(0, len(rows) - coder.group + 1, coder.group):
        group_data, group_rows = coder.code(rotated[first : first + coder.group])
        data += group_data
        decoded[first : first + coder.group] = group_rows
    return data, decoded


def rotated_back(rows, matrix):
    return rows.astype(np.float64) if matrix is None else rows @ matrix.T.astype(np.float64)


def attend(query, keys, values):
    q_heads, kv_heads = len(query), keys.shape[1]
    outputs = []
    for h in range(q_heads):
        kv = h // (q_heads // kv_heads)
        logits = keys[:, kv] @ query[h].astype(np.float64) / math.sqrt(query.shape[-1])
        weights = np.exp(logits - logits.max())
        outputs.append(weights @ values[:, kv] / weights.sum())
    return np.concatenate(outputs)


CASES = [
    ("naive", naive, {}),
    ("quarot", quarot, {}),
    ("saw-int4", saw_int4, {}),
    ("kivi", kivi, {}),
    ("kivi:group=64,k3v2", kivi, {"group": 64}),
    ("kivi:k4v4", kivi, {"bits": 4}),
    ("kivi:group=128", kivi, {"group": 128}),
    ("omniscale", omniscale, {}),
    ("omniscale:group=64", omniscale, {"group": 64}),
    ("omniscale:group=128,k3v3", omniscale, {"group": 128, "bits": 3}),
    ("spinquant-had", spinquant_had, {}),
    ("spinquant-had:k4v4", spinquant_had, {"bits": 4}),
    ("turboquant", turboquant, {}),
    ("turboquant:k3v3", turboquant, {"bits": 3}),
    ("turboquant:k4v4", turboquant, {"bits": 4}),
    ("kitty", kitty, {}),
    ("ott", ott, {}),
    ("ott:group=128,k3v3", ott, {"group": 128, "bits": 3}),
    ("rotatekv", rotatekv, {}),
    ("rotatekv:k4v4", rotatekv, {"bits": 4}),
]
SHAPES = [(64, 3, 9), (80, 1, 4), (128, 2, 14), (256, 1, 1)]  # head size, KV heads, query heads
TOKENS = 150


def main():
    for spec, make, options in CASES:
        for dim, kv_heads, q_heads in SHAPES:
            if make is rotatekv and dim & (dim - 1):
                continue
            method = make(dim, **options)
            if spec.endswith("k3v2"):
                method.keys.bits = 3
            keys = sample(1, TOKENS, kv_heads, dim)
            values = sample(2, TOKENS, kv_heads, dim)
            query = sample(3, 1, q_heads, dim)[0] * F(0.5)
            key_data, key_rows = stored(keys, method.keys, method.k_matrix)
            value_data, value_rows = stored(values, method.values, method.v_matrix)
            output = attend(
                query,
                rotated_back(key_rows, method.k_matrix),
                rotated_back(value_rows, method.v_matrix),
            )
            output = output[:: len(output) // 16][:16].astype(F)
            print(
                "case", spec, dim, kv_heads, q_heads, TOKENS, fnv(key_data), fnv(value_data),
                fnv(key_rows.astype("<f4").tobytes()), fnv(value_rows.astype("<f4").tobytes()),
                output.astype(">f4").tobytes().hex(),
            )  # fmt: skip


if __name__ == "__main__":
    main()
