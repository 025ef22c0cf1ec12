"""Rows of attention out of any transformers model: queries and keys after RoPE, values, outputs.

An attention implementation of our own is registered with transformers' attention interface, so the
model's architecture does not matter. It computes attention exactly, in float32.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from oscar_kv.errors import UnsupportedError
from oscar_kv.transformers.model import first_line

IMPLEMENTATION = "oscar_calibration"
QUERY_BLOCK = 256  # queries whose logits are held at once

# rows(layer, queries, keys, values, outputs, scale): [num_tokens, heads, head_dim], batch of one.
RowsFunction = Callable[[int, Tensor, Tensor, Tensor, Tensor, float], None]

_receivers: list[RowsFunction] = []


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    scale: float,
    soft_cap: float | None,
    sinks: Tensor | None,
) -> Tensor:
    """query: [B, num_q_heads, T, d], key, value: [B, num_kv_heads, S, d], mask: what transformers
    makes for `sdpa`. Returns float32 [B, T, num_q_heads, d_v]."""
    groups = query.shape[1] // key.shape[1]
    key = key.float().repeat_interleave(groups, dim=1)
    value = value.float().repeat_interleave(groups, dim=1)
    num_queries, num_keys = query.shape[2], key.shape[2]
    outputs = []
    for begin in range(0, num_queries, QUERY_BLOCK):
        end = min(begin + QUERY_BLOCK, num_queries)
        logits = query[:, :, begin:end].float() @ key.transpose(2, 3) * scale
        if soft_cap:
            logits = soft_cap * torch.tanh(logits / soft_cap)
        if mask is None:
            seen = torch.ones(num_queries, num_keys, dtype=torch.bool).tril(num_keys - num_queries)
            logits = logits.masked_fill(~seen[begin:end], -torch.inf)
        elif mask.dtype == torch.bool:
            logits = logits.masked_fill(~mask[:, :, begin:end, :num_keys], -torch.inf)
        else:
            logits = logits + mask[:, :, begin:end, :num_keys].float()
        if sinks is not None:
            extra = sinks.float().reshape(1, -1, 1, 1).expand(*logits.shape[:3], 1)
            weights = torch.cat([logits, extra], dim=3).softmax(dim=3)[..., :-1]
        else:
            weights = logits.softmax(dim=3)
        outputs.append(weights @ value)
    return torch.cat(outputs, dim=2).transpose(1, 2)


def _attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    position_bias: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    if position_bias is not None:
        raise UnsupportedError(f"{type(module).__name__}: attention with a position bias")
    if not getattr(module, "is_causal", True):
        raise UnsupportedError(f"{type(module).__name__}: attention that is not causal")
    scale = query.shape[-1] ** -0.5 if scaling is None else float(scaling)
    out = attend(query, key, value, attention_mask, scale, softcap, s_aux)
    if _receivers:
        _receivers[-1](
            module.layer_idx,
            query[0].transpose(0, 1).float(),
            key[0].transpose(0, 1).float(),
            value[0].transpose(0, 1).float(),
            out[0],
            scale,
        )
    return out.to(query.dtype), None


def _register() -> None:
    from transformers.masking_utils import AttentionMaskInterface, sdpa_mask
    from transformers.modeling_utils import AttentionInterface

    AttentionInterface.register(IMPLEMENTATION, _attention)
    AttentionMaskInterface.register(IMPLEMENTATION, sdpa_mask)


@contextlib.contextmanager
def attention_of(model: Any, implementation: str) -> Iterator[None]:
    """The model attends with `implementation` inside the block."""
    before = model.config._attn_implementation
    try:
        model.set_attn_implementation(implementation)
    except Exception as error:
        raise UnsupportedError(
            f"{type(model).__name__} takes no attention implementation of ours: {first_line(error)}"
        ) from None
    try:
        yield
    finally:
        model.set_attn_implementation(before)


@contextlib.contextmanager
def capturing(model: Any, receive: RowsFunction) -> Iterator[None]:
    """Every attention of the model inside the block goes to `receive`; batches of one only."""
    _register()
    with attention_of(model, IMPLEMENTATION), torch.inference_mode():
        _receivers.append(receive)
        try:
            yield
        finally:
            _receivers.pop()
