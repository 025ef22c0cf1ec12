"""Numbers, roundings and rotations that the definitions are made of."""

import math

import numpy as np

F = np.float32
UNCLIPPED = F(1)
U64 = (1 << 64) - 1


def splitmix(state):
    z = (state + 0x9E3779B97F4A7C15) & U64
    z = ((z ^ z >> 30) * 0xBF58476D1CE4E5B9) & U64
    z = ((z ^ z >> 27) * 0x94D049BB133111EB) & U64
    return z ^ z >> 31


def sample(seed, tokens, heads, dim):
    """Nearly Gaussian numbers; some channels are large or off centre, some tokens small."""
    out = np.empty((tokens, heads, dim), F)
    for t in range(tokens):
        for h in range(heads):
            for c in range(dim):
                z = splitmix((seed << 40) + (t << 20) + (h << 10) + c)
                total = sum(z >> 16 * i & 0xFFFF for i in range(4))
                value = (total - 131070) / 37837.0
                value = value * (6.0 if c % 16 == 3 else 1.0) + (4.0 if c % 16 == 5 else 0.0)
                out[t, h, c] = F(value * (0.0625 if t % 23 == 2 else 1.0))
    return out


def bf16(x):
    bits = np.ascontiguousarray(x, F).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & np.uint32(0xFFFF0000)).view(F)


def half(x):
    return np.clip(np.asarray(x, F), -65504, 65504).astype(np.float16)


def rint(x):
    return np.rint(x)


# Rotations: row · R.
def hadamard(dim):
    power = dim & -dim
    odd = dim // power
    matrix = np.empty((dim, dim))
    for i in range(dim):
        for j in range(dim):
            sign = -1.0 if bin(i // odd & j // odd).count("1") % 2 else 1.0
            matrix[i, j] = sign / math.sqrt(power)
            if odd > 1:
                angle = 2.0 * math.pi * ((i % odd) * (j % odd) % odd) / odd
                matrix[i, j] *= (math.cos(angle) + math.sin(angle)) / math.sqrt(odd)
    return matrix.astype(F)


def hadamard_times_p(dim):
    """Its columns in bit-reversed order, where dim is a power of two."""
    matrix = hadamard(dim)
    if dim & (dim - 1):
        return matrix
    bits = dim.bit_length() - 1
    return matrix[:, [int(f"{j:0{bits}b}"[::-1], 2) for j in range(dim)]]


def channel_signs(dim):
    return np.array([-1 if splitmix(i * 0x9E3779B97F4A7C15 & U64) >> 63 else 1 for i in range(dim)])


def signed_hadamard(dim):
    return hadamard(dim) * channel_signs(dim)[:, None].astype(F)


def block_hadamard(dim):
    order = min(dim & -dim, 128)
    matrix = np.zeros((dim, dim), F)
    for first in range(0, dim, order):
        matrix[first : first + order, first : first + order] = hadamard(order)
    return matrix


def random_rotation(dim):
    state, count = 1, 0

    def uniform():
        nonlocal count
        z = splitmix((state + count * 0x9E3779B97F4A7C15) & U64)
        count += 1
        return ((z >> 11) + 0.5) * 2.0**-53

    numbers = []
    while len(numbers) < dim * dim:
        radius = math.sqrt(-2.0 * math.log(uniform()))
        angle = 2.0 * math.pi * uniform()
        numbers += [radius * math.cos(angle), radius * math.sin(angle)]
    rows = np.array(numbers[: dim * dim]).reshape(dim, dim)
    for i in range(dim):
        for j in range(i):
            rows[i] -= np.cumsum(rows[i] * rows[j])[-1] * rows[j]
        rows[i] *= 1.0 / math.sqrt(np.cumsum(rows[i] * rows[i])[-1])
    return rows.astype(F)


def rotate(rows, matrix):
    if matrix is None:
        return rows.copy()
    out = np.zeros(rows.shape, F)
    for i in range(rows.shape[-1]):
        out = out + rows[..., i : i + 1] * matrix[i]
    return out
