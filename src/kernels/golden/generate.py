#!/usr/bin/env python3
"""Writes codec.txt: golden vectors of the codec, from NumPy and EncodeParams' definition alone.

    python3 generate.py > codec.txt

One line a vector. Rows: `row NAME FLOATS`, single precision as big-endian hex. Cases:
`case ROW bits group codebook fit clip CODES SCALES ZEROS`: clip as hex single precision, codes as
the bytes of one token, scales and zeros as BF16, `-` where there is none.
"""

import numpy as np

F = np.float32
STEPS = {2: F(0.9957), 3: F(0.5860), 4: F(0.3352)}
HEAD_DIM = 64


def bf16_bits(value):
    bits = int(np.asarray(value, F).view(np.uint32))
    return (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16


def bf16(value):
    return np.asarray(bf16_bits(value) << 16, np.uint32).view(F)


def lane_sum(terms):
    lanes = np.zeros(8, F)
    for first in range(0, len(terms), 8):
        lanes = lanes + terms[first : first + 8]
    four = lanes[:4] + lanes[4:]
    return (four[0] + four[2]) + (four[1] + four[3])


def encode_group(exact, x, bits, codebook, fit):
    top = F(2**bits - 1)
    if codebook == "affine":
        low, high = x.min(), x.max()
        if low == high:
            scale = bf16(abs(high))
            zero = F(0) if scale == 0 else F(-1) if high > 0 else F(1)
        else:
            scale = bf16((high - low) / top)
            zero = bf16(F(0) - low / scale)
    else:
        zero = top / F(2)
        scale = bf16(STEPS[bits] * np.sqrt(lane_sum(x * x) / F(len(x))))
    levels = x / (scale if scale != 0 else F(1)) + zero
    codes = np.rint(np.clip(levels, F(0), top))
    return codes.astype(int), fitted(exact, scale * (codes - zero), scale, fit), zero


def fitted(exact, decoded, scale, fit):
    if fit == "unbiased":
        factor = lane_sum(exact * exact) / lane_sum(exact * decoded)
    elif fit == "least-squares":
        factor = lane_sum(exact * decoded) / lane_sum(decoded * decoded)
    else:
        factor = F(1)
    if np.isfinite(factor) and factor > 0:
        scale = bf16(scale * factor)
    return scale


def search_word(v):
    """The codes of sixteen channels at positions v: the cheapest of all 2^16 closed paths."""
    path = np.arange(2**16)
    u = [(path >> t) & 1 for t in range(16)]
    cost = np.zeros(2**16, F)
    for t in range(16):
        low = (2 * (u[t] ^ u[t - 2]) + u[t - 1]).astype(F)
        near, far = v[t] - low, v[t] - (low + F(4))
        cost = cost + np.minimum(near * near, far * far)
    # Of equal costs: the first start (u_15, then u_14), then 0 for u_13, u_12, ...
    best = np.flatnonzero(cost == cost.min())
    rank = sum(u[t][best] << t for t in range(14)) + (u[15][best] << 14) + (u[14][best] << 15)
    word = best[np.argmin(rank)]
    bits = [int(word >> t) & 1 for t in range(16)]
    lows = [2 * (bits[t] ^ bits[t - 2]) + bits[t - 1] for t in range(16)]
    upper = [int(v[t] > lows[t] + 2) for t in range(16)]
    codes = [2 * a + b for a, b in zip(upper, bits, strict=True)]
    return codes, [4 * a + low for a, low in zip(upper, lows, strict=True)]


def encode_trellis_group(exact, x, fit):
    scale = bf16(F(0.5) * np.sqrt(lane_sum(x * x) / F(len(x))))
    positions = x / (scale if scale != 0 else F(1)) + F(3.5)
    codes, levels = [], []
    for first in range(0, len(x), 16):
        c, lv = search_word(positions[first : first + 16])
        codes += c
        levels += lv
    return np.array(codes), fitted(exact, scale * (np.array(levels, F) - F(3.5)), scale, fit), F(0)


def pack(codes, bits):
    low_bits = 4 if bits == 4 else 2
    planes = [(codes & (2**low_bits - 1), low_bits)]
    if bits == 3:
        planes.append((codes >> 2, 1))
    out = b""
    for values, width in planes:
        stream = sum(int(v) << (width * i) for i, v in enumerate(values))
        out += stream.to_bytes(len(values) * width // 8, "little")
    return out


def encode(row, bits, group, codebook, fit, clip):
    rank = max(1, int(np.ceil(clip * F(len(row)))))
    threshold = np.sort(np.abs(row))[rank - 1]
    clipped = np.clip(row, -threshold, threshold)
    codes, scales, zeros = [], "", ""
    for first in range(0, len(row), group):
        part = slice(first, first + group)
        if codebook == "trellis":
            c, scale, zero = encode_trellis_group(row[part], clipped[part], fit)
        else:
            c, scale, zero = encode_group(row[part], clipped[part], bits, codebook, fit)
        codes.extend(c)
        scales += f"{bf16_bits(scale):04x}"
        zeros += f"{bf16_bits(zero):04x}"
    return pack(np.array(codes), bits).hex(), scales, zeros if codebook == "affine" else "-"


def main():
    random = np.random.default_rng(2024)
    normal = random.standard_normal(HEAD_DIM).astype(F)
    rows = {
        "normal": normal,
        "outliers": np.where(np.arange(HEAD_DIM) % 23 == 5, normal * F(40), normal).astype(F),
        "offset": (random.standard_normal(HEAD_DIM) + 12).astype(F),
        "ties": (np.rint(random.standard_normal(HEAD_DIM) * 4) / 4).astype(F),
    }
    rows["ties"][16:32] = 0
    for name, row in rows.items():
        print("row", name, "".join(f"{int(v):08x}" for v in row.view(np.uint32)))
    for bits in (2, 3, 4):
        for codebook in ("affine", "symmetric", "trellis")[: 3 if bits == 2 else 2]:
            for fit in ("plain", "unbiased", "least-squares"):
                for i, name in enumerate(rows):
                    clip = F((1, 0.96, 0.9)[(i + bits) % 3])
                    group = (16, 32, 64)[(i + bits // 2) % 3]
                    with np.errstate(divide="ignore", invalid="ignore"):
                        fields = encode(rows[name], bits, group, codebook, fit, clip)
                    clip_hex = f"{int(np.asarray(clip).view(np.uint32)):08x}"
                    print("case", name, bits, group, codebook, fit, clip_hex, *fields)


if __name__ == "__main__":
    main()
