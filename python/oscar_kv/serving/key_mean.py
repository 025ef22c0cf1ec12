"""The keys' mean on a GPU: what encoding takes out and attention puts back.

q · RoPE_j(b) is Σ_f c_f cos(w_f j) + s_f sin(w_f j) + what is not rotated; the kernels take the
coefficients of some pairs of frequencies, the same number in every layer (mean_pairs.py).
"""

import dataclasses

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from oscar_kv.artefact import Rope
from oscar_kv.codec import PAGE_TOKENS, Side
from oscar_kv.serving.mean_pairs import channels_of, pairs_of


def rope_tables(
    inv_freq: np.ndarray, num_pages: int, device: str = "cuda"
) -> tuple[Tensor, Tensor]:
    """cos, sin of each pair at the tokens of a page and at the starts of pages, float32."""

    def table(positions: np.ndarray) -> Tensor:
        angles = positions[:, None] * inv_freq.astype(np.float64)
        both = np.stack([np.cos(angles), np.sin(angles)], -1).astype(np.float32)
        return torch.from_numpy(np.ascontiguousarray(both)).to(device)

    return table(np.arange(PAGE_TOKENS)), table(PAGE_TOKENS * np.arange(num_pages))


@dataclasses.dataclass
class KeyMean:
    """One layer's; tensors on the device. H KV heads of d channels, n pairs.

    rows: [H, d] as encoding takes it; tile, start: its tables, of all pairs. attend_tile,
    attend_start: tables of the n pairs. first, second: [n] channels; first_mean, second_mean:
    [H, n]; rest: [H, d] what is not rotated.
    """

    rows: Tensor
    num_pairs: int
    interleaved: bool
    tile: Tensor
    start: Tensor
    attend_tile: Tensor
    attend_start: Tensor
    first: Tensor
    second: Tensor
    first_mean: Tensor
    second_mean: Tensor
    rest: Tensor
    inv_freq: Tensor

    @classmethod
    def of(
        cls,
        side: Side,
        num_heads: int,
        head_dim: int,
        num_pairs: int,
        most: int,
        device: str = "cuda",
    ) -> "KeyMean":
        """num_pairs: of the plan; most: largest position."""
        mean = np.zeros((num_heads, head_dim), np.float32) if side.mean is None else side.mean
        rope = side.rope or Rope(np.zeros(0, np.float32))
        first, second = channels_of(rope)
        rows, rest = mean.copy(), mean.copy()
        for channels in (first, second):
            rows[:, channels] *= rope.magnitude
            rest[:, channels] = 0
        chosen = pairs_of(side)
        padding = num_pairs - len(chosen)
        inv_freq = np.concatenate([rope.inv_freq[chosen], np.zeros(padding, np.float32)])

        def of_pairs(channels: np.ndarray) -> tuple[Tensor, Tensor]:
            numbers = np.concatenate([channels[chosen], np.zeros(padding, np.int64)])
            values = np.pad(rows[:, channels[chosen]], ((0, 0), (0, padding)))
            values = np.ascontiguousarray(values)  # picking columns gives them column after column
            return (
                torch.from_numpy(numbers.astype(np.int32)).to(device),
                torch.from_numpy(values).to(device),
            )

        num_pages = most // PAGE_TOKENS + 1
        tables = rope_tables(rope.inv_freq, num_pages, device) if len(rope.inv_freq) else None
        nothing = torch.zeros(0, dtype=torch.float32, device=device)
        attend_tables = rope_tables(inv_freq, num_pages, device)
        first_channels, first_mean = of_pairs(first)
        second_channels, second_mean = of_pairs(second)
        return cls(
            torch.from_numpy(rows).to(device),
            len(rope.inv_freq),
            rope.pairing == "interleaved",
            *(tables or (nothing, nothing)),
            *attend_tables,
            *(first_channels, second_channels, first_mean, second_mean),
            torch.from_numpy(rest).to(device),
            torch.from_numpy(rope.inv_freq.astype(np.float64)).to(device),
        )

    def coefficients(self, q: Tensor) -> Tensor:
        """Of raw queries [T, num_q_heads, d]: float32 [T, num_q_heads, 2n + 1]."""
        num_tokens, num_q_heads, head_dim = q.shape
        pairs = len(self.first)
        room = (num_tokens, num_q_heads, 2 * pairs + 1)
        out = torch.empty(room, dtype=torch.float32, device=q.device)
        _coefficients[(num_tokens, num_q_heads)](
            q,
            q.stride(0),
            *(self.first, self.second, self.first_mean, self.second_mean, self.rest, out),
            num_q_heads // self.rest.shape[0],
            num_q_heads,
            PAIRS=pairs,
            PAIRS_ROUNDED=triton.next_power_of_2(pairs),
            HEAD_DIM=head_dim,
        )
        return out

    def add_to(self, keys: Tensor, first_token: int) -> None:
        """Adds the mean, at their positions, to raw keys [T, H, d] of tokens first_token, ..."""
        tokens = torch.arange(first_token, first_token + len(keys), device=keys.device)
        total = self.rest.expand(len(keys), -1, -1).clone()
        if self.num_pairs:
            angles = tokens[:, None].double() * self.inv_freq
            cos, sin = angles.cos().float()[:, None], angles.sin().float()[:, None]
            if self.interleaved:
                a, b = self.rows[:, 0 : 2 * self.num_pairs : 2], self.rows[:, 1::2]
                total[..., 0 : 2 * self.num_pairs : 2] = a * cos - b[:, : self.num_pairs] * sin
                total[..., 1 : 2 * self.num_pairs : 2] = a * sin + b[:, : self.num_pairs] * cos
            else:
                a = self.rows[:, : self.num_pairs]
                b = self.rows[:, self.num_pairs : 2 * self.num_pairs]
                total[..., : self.num_pairs] = a * cos - b * sin
                total[..., self.num_pairs : 2 * self.num_pairs] = a * sin + b * cos
        keys.copy_(keys.float() + total)


@triton.jit
def _coefficients(
    q,
    q_stride,
    first,
    second,
    first_mean,
    second_mean,
    rest,
    out,
    q_heads_per_kv_head,
    num_q_heads,
    PAIRS: tl.constexpr,
    PAIRS_ROUNDED: tl.constexpr,
    HEAD_DIM: tl.constexpr,
):
    token, head = tl.program_id(0), tl.program_id(1)
    kv_head = head // q_heads_per_kv_head
    row = q + token * q_stride + head * HEAD_DIM
    pair = tl.arange(0, PAIRS_ROUNDED)
    real = pair < PAIRS
    a = tl.load(row + tl.load(first + pair, real, 0), real, 0.0).to(tl.float32)
    b = tl.load(row + tl.load(second + pair, real, 0), real, 0.0).to(tl.float32)
    mean_a = tl.load(first_mean + kv_head * PAIRS + pair, real, 0.0)
    mean_b = tl.load(second_mean + kv_head * PAIRS + pair, real, 0.0)
    to = out + (token * num_q_heads + head) * (2 * PAIRS + 1)
    tl.store(to + 2 * pair, a * mean_a + b * mean_b, real)
    tl.store(to + 2 * pair + 1, b * mean_a - a * mean_b, real)
    channel = tl.arange(0, HEAD_DIM)
    values = tl.load(row + channel).to(tl.float32)
    tl.store(to + 2 * PAIRS, tl.sum(values * tl.load(rest + kv_head * HEAD_DIM + channel)))
