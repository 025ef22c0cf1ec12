"""All layers of a GPU process of an engine: codecs, plans, pools of copies, self-test."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from oscar_kv.serving.cuda_layer import CudaLayer
from oscar_kv.serving.cuda_library import CudaLibrary
from oscar_kv.serving.cuda_plans import DenseAttention, Plans, Prefill
from oscar_kv.serving.cuda_selftest import NUM_TOKENS, check_cuda_layer
from oscar_kv.serving.method import ServedMethod
from oscar_kv.serving.not_finite import NotFinite
from oscar_kv.serving.windows import Windows

Key = TypeVar("Key", int, str)


@dataclasses.dataclass(frozen=True)
class CudaLayers(Generic[Key]):
    """by_key: the layers under the engine's keys. pools: of exact copies; none without windows."""

    by_key: dict[Key, CudaLayer]
    pools: list[Tensor]
    plans: Plans
    prefill: Prefill
    not_finite: NotFinite

    def __str__(self) -> str:
        return (
            f"attention kernel {self.plans.kernel}, workspaces {self.plans.num_bytes / 2**20:.1f} "
            f"MiB, room for continued prompts {self.prefill.num_bytes / 2**20:.1f} MiB"
        )


def make_cuda_layers(
    served: ServedMethod,
    windows: Windows,
    indices: Mapping[Key, int],
    num_blocks: int,
    max_position: int,
    most_seqs: int,
    dense: DenseAttention,
) -> CudaLayers[Key]:
    """A layer for each index of the model; pools and workspaces are taken here.

    most_seqs: of a batch that is expected; workspaces for every batch up to that are made now,
    before the engine measures what memory is left. dense: the engine's attention of prompts.
    """
    shape, library = served.shape, CudaLibrary()
    codecs = {key: served.codec(index, max_position) for key, index in indices.items()}
    plans = Plans(library, list(codecs.values()), windows, torch.cuda.current_device())
    prefill = Prefill(shape, max(max_position + 1, NUM_TOKENS), dense)
    not_finite = NotFinite(list(indices.values()), "cuda")
    pools: list[Tensor] = []
    if windows.rows_per_block:
        room = (num_blocks, shape.num_kv_heads, 2, windows.rows_per_block, shape.head_dim_k)
        pools = list(torch.zeros((len(codecs), *room), dtype=torch.bfloat16, device="cuda"))
    layers = {
        key: CudaLayer(codec, windows, plans, prefill, pool, flag)
        for (key, codec), pool, flag in zip(
            codecs.items(),
            pools or [None] * len(codecs),
            not_finite.flags.split(1),
            strict=True,
        )
    }
    check_cuda_layer(served, library, prefill)
    for size in range(1, most_seqs + 1):
        plans[size]
    return CudaLayers(layers, pools, plans, prefill, not_finite)


def causal_attention(varlen: Callable[..., Any]) -> DenseAttention:
    """Of an engine's FlashAttention: (q, keys, values, scale, out, bounds) with FlashAttention's
    arguments cu_seqlens_q, cu_seqlens_k, max_seqlen_q and max_seqlen_k as bounds."""

    def attend(q: Tensor, keys: Tensor, values: Tensor, scale: float, out: Tensor) -> None:
        bounds = torch.tensor([[0, len(q)], [0, len(keys)]], dtype=torch.int32).cuda(
            non_blocking=True
        )
        named: dict[str, Any] = {"cu_seqlens_q": bounds[0], "cu_seqlens_k": bounds[1]}
        named |= {"max_seqlen_q": len(q), "max_seqlen_k": len(keys)}
        varlen(q, keys, values, scale, out, named)

    return attend
