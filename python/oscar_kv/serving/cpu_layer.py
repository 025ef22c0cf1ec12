"""One layer on CPU: encodes into the engine's pages, keeps copies, attends over both."""

import dataclasses
from collections.abc import Mapping
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from oscar_kv.codec import PAGE_TOKENS, Codec
from oscar_kv.errors import NotFiniteError
from oscar_kv.serving.copies import Copies
from oscar_kv.serving.method import ServedMethod
from oscar_kv.serving.not_finite import NotFinite
from oscar_kv.serving.windows import Windows

Key = TypeVar("Key", int, str)


@dataclasses.dataclass(frozen=True)
class CpuStep:
    """The sequences of a step, for all layers; N sequences, T tokens.

    starts: [N + 1] where the new tokens of each begin; lengths: [N] tokens, the new ones included;
    table: [N, pages]; positions, slots: [T], slot −1: padding; blocks: [N] block of copies that
    the sequence writes to, −1: none; copies: None without windows.
    """

    starts: np.ndarray
    lengths: np.ndarray
    table: np.ndarray
    positions: np.ndarray
    slots: np.ndarray
    blocks: np.ndarray
    copies: Copies | None

    @property
    def num_tokens(self) -> int:
        return int(self.starts[-1])


class CpuLayer:
    """A layer's codec and its exact copies.

    k_pool, v_pool: BF16 [num_blocks · rows_per_block, num_kv_heads, head_dim] raw rows, or None.
    not_finite: int32 [1], set when a row held NaN or Inf.
    """

    def __init__(
        self,
        codec: Codec,
        windows: Windows,
        k_pool: Tensor | None,
        v_pool: Tensor | None,
        not_finite: Tensor,
    ) -> None:
        self._codec, self._windows = codec, windows
        self._pools = (k_pool, v_pool)
        self._not_finite = not_finite

    def pages_of(self, cache: Tensor) -> np.ndarray:
        """The engine's cache of this layer as [num_pages, page_bytes], not copied."""
        return cache.view(-1, self._codec.page_bytes).numpy()

    def take_copies(self, step: CpuStep) -> None:
        """Copies that other blocks have, before anything is written."""
        if step.copies is None:
            return
        sinks = self._windows.sink_tokens
        for donors, rows in (
            (step.copies.donors, slice(0, sinks)),
            (step.copies.recent_donors, slice(sinks, None)),
        ):
            chosen = donors >= 0
            if not bool(chosen.any()):
                continue
            to, source = torch.from_numpy(step.blocks)[chosen], donors[chosen]
            for pool in self._pools:
                blocks = pool.view(-1, self._windows.rows_per_block, *pool.shape[1:])
                blocks[to, rows] = blocks[source, rows]

    def write(self, keys: Tensor, values: Tensor, step: CpuStep, pages: np.ndarray) -> None:
        """Encodes the step's tokens; keys, values: [T or more, num_kv_heads, head_dim]."""
        count = step.num_tokens
        rows = [x[:count].float().contiguous().numpy() for x in (keys, values)]
        try:
            self._codec.encode_pages(
                *rows,
                step.positions[:count],
                step.slots[:count],
                pages,
                torch.get_num_threads(),
            )
        except NotFiniteError:
            self._not_finite.fill_(1)
        self.take_copies(step)
        self._write_copies(keys, values, step, long=False)

    def _write_copies(self, keys: Tensor, values: Tensor, step: CpuStep, *, long: bool) -> None:
        """Of the sequences with more (long) or no more new tokens than the ring has room for.

        A long run of new tokens takes the place of copies that its first queries still need, so it
        is kept after attention.
        """
        if step.copies is None:
            return
        counts = np.diff(step.starts)
        chosen = np.repeat((counts > self._windows.most_queries) == long, counts)
        slots = step.copies.slots[: step.num_tokens]
        which = torch.from_numpy(chosen) & (slots >= 0)
        for pool, rows in zip(self._pools, (keys, values), strict=True):
            pool[slots[which]] = rows[: step.num_tokens][which].to(torch.bfloat16)

    def attend(
        self,
        q: Tensor,
        keys: Tensor,
        values: Tensor,
        step: CpuStep,
        pages: np.ndarray,
        out: Tensor,
        *,
        scale: float,
        soft_cap: float = 0.0,
    ) -> None:
        """Causal attention of the step's tokens, after `write`.

        q, out: [T or more, num_q_heads, head_dim]; rows of padding are left alone.
        """
        for i in range(len(step.lengths)):
            begin, end = int(step.starts[i]), int(step.starts[i + 1])
            if end == begin:
                continue
            length = int(step.lengths[i])
            result, _ = self._codec.attend_pages(
                q[begin:end].float().contiguous().numpy(),
                np.arange(length - (end - begin), length, dtype=np.int32),
                pages,
                np.ascontiguousarray(step.table[i, : -(-length // PAGE_TOKENS)], np.int32),
                length,
                scale=scale,
                soft_cap=soft_cap,
                copies=self._copies(i, keys[begin:end], values[begin:end], length, step),
                sink_tokens=self._windows.sink_tokens,
                recent_tokens=self._windows.recent_tokens,
                num_threads=torch.get_num_threads(),
            )
            out[begin:end] = torch.from_numpy(result)
        self._write_copies(keys, values, step, long=True)

    def _copies(
        self, i: int, keys: Tensor, values: Tensor, length: int, step: CpuStep
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
        """Row of each token's copy, and the copies: the pool, or what is taken from it here."""
        if step.copies is None:
            return None
        windows, new = self._windows, len(keys)
        first, block = length - new, int(step.blocks[i])
        rows = np.full(length, -1, np.int32)
        base = block * windows.rows_per_block
        have = np.arange(0)
        if block >= 0:
            begin = int(step.copies.exact_from[i])
            sinks = windows.sink_tokens if bool(step.copies.sinks[i]) else 0
            short = new <= windows.most_queries
            recent = max(begin, first + 1 - windows.recent_tokens, 0)
            have = np.concatenate(
                [
                    np.arange(min(sinks, length)),
                    np.arange(max(recent, sinks), length if short else first),
                ]
            ).astype(np.int64)
            ring = windows.sink_tokens + have % windows.ring_tokens
            rows[have] = base + np.where(have < windows.sink_tokens, have, ring)
            if short:
                return rows, *(_bits(pool) for pool in self._pools)
        # The step's own rows are exact; behind them what the ring still has of those before.
        have = have[have < first]
        picked = torch.from_numpy(rows[have].astype(np.int64))
        rows[:] = -1
        rows[have] = np.arange(len(have))
        rows[first:] = len(have) + np.arange(new)
        taken = [
            torch.cat([pool[picked], x.to(torch.bfloat16)])
            for pool, x in zip(self._pools, (keys, values), strict=True)
        ]
        return rows, *(_bits(x) for x in taken)


def _bits(rows: Tensor) -> np.ndarray:
    return rows.contiguous().view(torch.uint16).numpy()


def make_cpu_layers(
    served: ServedMethod,
    windows: Windows,
    indices: Mapping[Key, int],
    num_blocks: int,
    max_position: int,
) -> tuple[dict[Key, CpuLayer], NotFinite]:
    """A layer for each index of the model, under the engine's key, with a pool for its copies."""
    shape, rows = served.shape, num_blocks * windows.rows_per_block

    def pool(head_dim: int) -> Tensor | None:
        if not rows:
            return None
        return torch.zeros(rows, shape.num_kv_heads, head_dim, dtype=torch.bfloat16)

    not_finite = NotFinite(list(indices.values()))
    layers = {
        key: CpuLayer(
            served.codec(index, max_position),
            windows,
            pool(shape.head_dim_k),
            pool(shape.head_dim_v),
            flag,
        )
        for (key, index), flag in zip(indices.items(), not_finite.flags.split(1), strict=True)
    }
    return layers, not_finite
