"""Each method as docs/methods.md defines it, in NumPy: rotations, and `code` of a group of rows.

`code` takes [tokens][heads][channels], rotated, and gives the stored bytes and the decoded rows.
"""

import math

import numpy as np
from primitives import (
    UNCLIPPED,
    F,
    bf16,
    block_hadamard,
    hadamard,
    hadamard_times_p,
    half,
    random_rotation,
    rint,
    sample,
    signed_hadamard,
)


# Affine codes along the first axis.
def minimum_affine(x, bits, clip=UNCLIPPED):
    top = F(2**bits - 1)
    low, high = x.min(0) * clip, x.max(0) * clip
    scale, offset = half((high - low) / top), half(low)
    step = scale.astype(F)
    level = (x - offset.astype(F)) / np.where(step == 0, F(1), step)
    codes = np.where(step == 0, F(0), np.clip(rint(level), F(0), top))
    return codes.astype(np.uint8), scale, offset


def integer_affine(x, bits, clip=UNCLIPPED):
    top = F(2**bits - 1)
    low, high = x.min(0) * clip, x.max(0) * clip
    constant = (low == high) & (high != 0)
    low, high = (np.where(low == high, F(v), w) for v, w in ((-1, low), (1, high)))
    scale = ((high - low) / top).astype(F)
    zero = rint(-low / scale)
    codes = np.clip(rint(x / scale + zero), F(0), top)
    stored_scale = half(np.where(constant, F(0), scale))
    stored_offset = half(np.where(constant, x.max(0), -zero * scale))
    return np.where(constant, F(0), codes).astype(np.uint8), stored_scale, stored_offset


def affine_values(codes, scale, offset):
    return scale.astype(F) * codes.astype(F) + offset.astype(F)


def pack(codes, bits):
    flat = codes.reshape(-1)
    number = np.zeros(len(flat) * bits, np.uint8)
    for b in range(bits):
        number[b::bits] = flat >> b & 1
    return np.packbits(number, bitorder="little").tobytes()


def pairs(scale, offset):
    return np.stack([scale, offset], -1).astype("<f2").tobytes()


class PerToken:
    """Affine codes of one token: each head its codes, then a pair for each group of channels."""

    group = 1

    def __init__(self, affine, bits, channels, clip=UNCLIPPED):
        self.affine, self.bits, self.channels, self.clip = affine, bits, channels, clip

    def code(self, rows):
        data, out = b"", np.empty(rows.shape, F)
        for h, row in enumerate(rows[0]):
            groups = row.reshape(-1, self.channels).T
            codes, scale, offset = self.affine(groups, self.bits, self.clip)
            data += pack(codes.T, self.bits) + pairs(scale, offset)
            out[0, h] = affine_values(codes, scale, offset).T.reshape(-1)
        return data, out


class PackedPerToken(PerToken):
    """The affine codes of pages: BF16 scales of all groups, then their zero points."""

    def __init__(self, bits, channels):
        super().__init__(None, bits, channels)

    def code(self, rows):
        data, out = b"", np.empty(rows.shape, F)
        top = F(2**self.bits - 1)
        for h, row in enumerate(rows[0]):
            groups = row.reshape(-1, self.channels)
            low, high = groups.min(1), groups.max(1)
            scale = bf16((high - low) / top)
            zero = bf16(F(0) - low / scale)
            level = groups / scale[:, None] + zero[:, None]
            codes = np.rint(np.clip(level, F(0), top)).astype(np.uint8)
            data += pack(codes, self.bits)
            for number in (scale, zero):
                data += (number.view(np.uint32) >> 16).astype("<u2").tobytes()
            out[0, h] = (scale[:, None] * (codes.astype(F) - zero[:, None])).reshape(-1)
        return data, out


class PerChannel:
    def __init__(self, affine, bits, group):
        self.affine, self.bits, self.group = affine, bits, group

    def code(self, rows):
        codes, scale, offset = self.affine(rows, self.bits)
        data = pack(codes, self.bits) + pairs(scale.reshape(-1), offset.reshape(-1))
        return data, affine_values(codes, scale, offset)


class NormedPerChannel(PerChannel):
    def code(self, rows):
        square = np.cumsum(rows.reshape(len(rows), -1).astype(np.float64) ** 2, 1)[:, -1]
        norm = np.where(square == 0, F(1), np.sqrt(square).astype(F))[:, None, None]
        data, out = super().code(rows / norm)
        return data + norm.astype("<f4").tobytes(), out * norm


def gaussian_levels(bits):
    """Lloyd's iteration on a unit Gaussian; ascending."""
    count = 2 ** (bits - 1)
    density = lambda x: math.exp(-x * x / 2) / math.sqrt(2 * math.pi)  # noqa: E731
    level = np.linspace(0.2, 2.2, count)
    for _ in range(20000):
        border = [0.0, *((level[1:] + level[:-1]) / 2), 40.0]
        mass = np.diff([math.erf(b / math.sqrt(2)) / 2 for b in border])
        level = -np.diff([density(b) for b in border]) / mass
    return np.concatenate([-level[::-1], level])


class Turboquant:
    group = 1

    def __init__(self, bits):
        self.bits, self.levels = bits, gaussian_levels(bits)

    def code(self, rows):
        data, out = b"", np.empty(rows.shape, F)
        dim = rows.shape[-1]
        deviation = F(1) / np.sqrt(F(dim))
        # Eight decimals, as the method's file has them.
        level = np.round(self.levels, 8).astype(F) * deviation
        border = F(0.5) * (level[:-1] + level[1:])
        for h, row in enumerate(rows[0]):
            norm = F(math.sqrt(np.cumsum(row.astype(np.float64) ** 2)[-1]))
            codes = np.searchsorted(border, row / norm, side="right").astype(np.uint8)
            data += pack(codes, self.bits) + half(norm).astype("<f2").tobytes()
            out[0, h] = half(norm).astype(F) * level[codes]
        return data, out


def channels_in_group(wanted, dim):
    group = min(wanted, dim) // 16 * 16
    while dim % group:
        group -= 16
    return group


class Method:
    def __init__(self, keys, values, k_matrix=None, v_matrix=None):
        self.keys, self.values, self.k_matrix, self.v_matrix = keys, values, k_matrix, v_matrix


def naive(dim):
    coder = PackedPerToken(2, channels_in_group(128, dim))
    return Method(coder, coder)


def quarot(dim):
    coder = PackedPerToken(2, channels_in_group(128, dim))
    return Method(coder, coder, hadamard_times_p(dim), hadamard_times_p(dim))


def saw_int4(dim):
    coder = PackedPerToken(4, dim)
    return Method(coder, coder, block_hadamard(dim))


def kivi(dim, bits=2, group=32):
    values = PerToken(minimum_affine, bits, channels_in_group(group, dim))
    return Method(PerChannel(minimum_affine, bits, group), values)


def omniscale(dim, bits=2, group=32):
    values = PerToken(integer_affine, bits, channels_in_group(32, dim))
    keys = NormedPerChannel(integer_affine, bits, group)
    return Method(keys, values, hadamard(dim), hadamard(dim))


def spinquant_had(dim, bits=2):
    coder = PerToken(integer_affine, bits, channels_in_group(128, dim))
    return Method(coder, coder, hadamard(dim), signed_hadamard(dim))


def turboquant(dim, bits=2):
    matrix = random_rotation(dim)
    return Method(Turboquant(bits), Turboquant(bits), matrix, matrix)


class Kitty:
    """Keys per channel at 2 bits; a quarter of each head's channels at 4, by mean magnitude."""

    def __init__(self):
        self.group = 128

    def code(self, rows):
        tokens, heads, dim = rows.shape
        count = dim // 4
        low, high = np.zeros(rows.shape, np.uint8), np.zeros((tokens, heads, count), np.uint8)
        scale, offset = np.zeros((heads, dim), np.float16), np.zeros((heads, dim), np.float16)
        index, out = np.full((heads, dim), 255, np.uint8), np.empty(rows.shape, F)
        for h in range(heads):
            sums = np.cumsum(np.abs(rows[:, h].astype(np.float64)), 0)[-1]
            promoted = sorted(sorted(range(dim), key=lambda c: -sums[c])[:count])
            for c in range(dim):
                bits = 4 if c in promoted else 2
                codes, scale[h, c], offset[h, c] = minimum_affine(rows[:, h, c], bits)
                out[:, h, c] = affine_values(codes, scale[h, c], offset[h, c])
                low[:, h, c] = codes & 3
                if bits == 4:
                    index[h, c] = promoted.index(c)
                    high[:, h, index[h, c]] = codes >> 2
        flat = high.reshape(tokens, -1)
        flat = np.pad(flat, ((0, 0), (0, -flat.shape[1] % 8)))
        params = pairs(scale.reshape(-1), offset.reshape(-1))
        return pack(low, 2) + pack(flat, 2) + params + index.tobytes(), out


class Ott:
    """minimum_affine per channel without the tokens whose keys are small where most are large."""

    def __init__(self, bits, group):
        self.bits, self.group = bits, group

    def code(self, rows):
        tokens, heads, dim = rows.shape
        codes, out = np.zeros(rows.shape, np.uint8), np.empty(rows.shape, F)
        params, counts, exact = b"", b"", b""
        for h in range(heads):
            size = np.abs(rows[:, h].astype(np.float64))
            sums = np.cumsum(size, 0)[-1]
            channels = sorted(sorted(range(dim), key=lambda c: -sums[c])[: dim // 4])
            score = np.cumsum(size[:, channels], 1)[:, -1]
            order = sorted(range(tokens), key=lambda t: score[t])
            median = score[order[(tokens - 1) // 2]]
            outliers = sorted([t for t in order if score[t] < 0.5 * median][:5])
            others = [t for t in range(tokens) if t not in outliers]
            _, scale, offset = minimum_affine(rows[others, h], self.bits)
            step, least = scale.astype(F), offset.astype(F)
            level = (rows[:, h] - least) / np.where(step == 0, F(1), step)
            clipped = np.clip(rint(level), F(0), F(2**self.bits - 1))
            codes[:, h] = np.where(step == 0, F(0), clipped)
            out[:, h] = affine_values(codes[:, h], scale, offset)
            out[outliers, h] = rows[outliers, h]
            params += pairs(scale, offset)
            counts += bytes([len(outliers)])
            for t in outliers:
                exact += bytes([t])
                exact += (rows[t, h].view(np.uint32) >> 16).astype("<u2").tobytes()
        return pack(codes, self.bits) + params + counts + exact, out


def half_split_rope(row, position, back):
    """[heads][dim] turned by the position, base 10000."""
    half_dim = row.shape[-1] // 2
    frequency = np.array([F(10000.0 ** (-2.0 * i / (2 * half_dim))) for i in range(half_dim)])
    angle = frequency.astype(np.float64) * position * (-1 if back else 1)
    a, b = row[:, :half_dim].astype(np.float64), row[:, half_dim:].astype(np.float64)
    turned = (a * np.cos(angle) - b * np.sin(angle), a * np.sin(angle) + b * np.cos(angle))
    return np.concatenate(turned, -1).astype(F)


def butterflies(row):
    x = row.astype(F).copy()
    step = 1
    while step < len(x):
        pair = x.reshape(-1, 2, step)
        x = np.stack([pair[:, 0] + pair[:, 1], pair[:, 0] - pair[:, 1]], 1).reshape(-1)
        step *= 2
    return x * (F(1) / np.sqrt(F(len(x))))


class RotateKvKeys:
    group = 1
    position = 0  # of the next token

    def __init__(self, bits, mean):
        self.bits, self.mean = bits, mean
        self.position = 0

    def code(self, rows):
        heads, dim = rows.shape[1:]
        together = max(n for n in (1, 2, 4) if heads % n == 0)
        before = half_split_rope(rows[0], self.position, back=True)
        out, data = np.empty((heads, dim), F), b""
        clip = F(0.8) if self.bits == 2 else F(1)
        for first in range(0, heads, together):
            mixed = slice(first, first + together)
            order = np.argsort(self.mean[mixed].reshape(-1), kind="stable")
            turned = butterflies(before[mixed].reshape(-1)[order])
            coder = PerToken(integer_affine, self.bits, min(128, len(turned)), clip)
            part, values = coder.code(turned[None, None])
            data += part
            straight = np.empty(len(turned), F)
            straight[order] = butterflies(values[0, 0])
            out[mixed] = straight.reshape(together, dim)
        out = half_split_rope(out, self.position, back=False)
        self.position += 1
        return data, out[None]


def kitty(dim):
    return Method(Kitty(), PerToken(minimum_affine, 2, channels_in_group(128, dim)))


def ott(dim, bits=2, group=64):
    values = PerToken(minimum_affine, bits, channels_in_group(group, dim))
    return Method(Ott(bits, group), values)


def rotatekv(dim, bits=2):
    mean = sample(4, 1, 4, dim)[0]
    clip = F(0.8) if bits == 2 else F(1)
    values = PerToken(integer_affine, bits, channels_in_group(128, dim), clip)
    return Method(RotateKvKeys(bits, mean), values, None, hadamard(dim))
