"""Layers of a GPU process: pools of copies, plans, and SGLang's dense attention for prompts."""

import logging
from typing import Any

import torch
from torch import Tensor

from oscar_kv.errors import UnsupportedError
from oscar_kv.serving.cuda_layer import CudaLayer, Plans, Prefill
from oscar_kv.serving.cuda_library import CudaLibrary
from oscar_kv.serving.cuda_selftest import NUM_TOKENS, check_cuda_layer

logger = logging.getLogger("sglang.oscar_kv")


def dense_attention() -> Any:
    """FlashAttention 3 over rows, causal, from the kernels that SGLang's own backend fa3 uses."""
    from sglang.kernels.ops.attention.flash_attention_v3 import _is_fa3_supported

    try:
        from sgl_kernel.flash_attn import flash_attn_varlen_func
    except ImportError as error:
        raise UnsupportedError(
            f"sglang-kernel has no FlashAttention ({error}); prompts attend with it"
        ) from None
    if not _is_fa3_supported():
        raise UnsupportedError(
            f"{torch.cuda.get_device_name()} has no FlashAttention 3; prompts attend with it"
        )

    def attend(q: Tensor, keys: Tensor, values: Tensor, scale: float, out: Tensor) -> None:
        bounds = torch.tensor([[0, len(q)], [0, len(keys)]], dtype=torch.int32).cuda(
            non_blocking=True
        )
        result = flash_attn_varlen_func(
            q,
            keys,
            values,
            cu_seqlens_q=bounds[0],
            cu_seqlens_k=bounds[1],
            max_seqlen_q=len(q),
            max_seqlen_k=len(keys),
            softmax_scale=scale,
            causal=True,
        )
        out.copy_(result)

    return attend


def make_layers(worker: Any) -> dict[int, CudaLayer]:
    """All layers of this process by index; their pools and workspaces are taken here."""
    shape, windows = worker.served.shape, worker.windows
    indices = worker.local_layers
    library = CudaLibrary()
    codecs = {index: worker.served.codec(index, worker.max_position) for index in indices}
    plans = Plans(library, list(codecs.values()), windows, torch.cuda.current_device())
    prefill = Prefill(shape, max(worker.max_position + 1, NUM_TOKENS), dense_attention())
    pool = None
    if windows.rows_per_block:
        room = (worker.num_blocks, shape.num_kv_heads, 2, windows.rows_per_block, shape.head_dim_k)
        pool = torch.zeros((len(indices), *room), dtype=torch.bfloat16, device="cuda")
    layers = {}
    for i, (index, codec) in enumerate(codecs.items()):
        layers[index] = CudaLayer(codec, windows, plans, prefill, None if pool is None else pool[i])
    check_cuda_layer(worker.served, library, prefill)
    # Workspaces of every batch that is expected, before SGLang measures what memory is left.
    for size in range(1, worker.num_requests + 1):
        plans[size]
    logger.info(
        "oscar-kv: attention kernel %s, workspaces %.1f MiB, room for continued prompts %.1f MiB",
        plans.kernel,
        plans.num_bytes / 2**20,
        prefill.num_bytes / 2**20,
    )
    return layers
