"""Layers of a GPU process: pools of copies, plans, and SGLang's dense attention for prompts."""

from typing import Any

import torch

from oscar_kv.errors import UnsupportedError
from oscar_kv.serving.cuda_layers import CudaLayers, causal_attention, make_cuda_layers


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

    def varlen(q, keys, values, scale, out, bounds) -> None:
        out.copy_(
            flash_attn_varlen_func(q, keys, values, softmax_scale=scale, causal=True, **bounds)
        )

    return causal_attention(varlen)


def make_layers(worker: Any) -> CudaLayers[int]:
    """All layers of this process by index; their pools and workspaces are taken here."""
    return make_cuda_layers(
        worker.served,
        worker.windows,
        {index: index for index in worker.local_layers},
        worker.num_blocks,
        worker.max_position,
        worker.num_requests,
        dense_attention(),
    )
