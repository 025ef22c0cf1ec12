"""The attention implementation that goes with OscarCache, "oscar" to transformers."""

from typing import Any

from torch import Tensor

from oscar_kv.errors import UnsupportedError
from oscar_kv.transformers.model import first_line

IMPLEMENTATION = "oscar"
TAG = "_oscar_cache"  # on the keys that OscarCache.update hands on: (cache, layer)


def _attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    position_bias: Tensor | None = None,
    position_ids: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    tag = getattr(key, TAG, None)
    if tag is None:
        raise UnsupportedError(
            "attention 'oscar' needs past_key_values=OscarCache(...); for anything else call "
            "model.set_attn_implementation('sdpa')"
        )
    if query.device.type != "cpu":
        raise UnsupportedError(f"tensors are on {query.device}; an OscarCache works on the CPU")
    if position_bias is not None or not getattr(module, "is_causal", True):
        raise UnsupportedError(f"{type(module).__name__}: only causal attention without a bias")
    if query.requires_grad:
        raise UnsupportedError("an OscarCache has no gradients; use torch.inference_mode()")
    cache, layer = tag
    out = cache.attend(
        layer,
        query,
        key,
        value,
        attention_mask,
        position_ids,
        scale=query.shape[-1] ** -0.5 if scaling is None else float(scaling),
        soft_cap=softcap or 0.0,
        sliding_window=sliding_window or 0,
        sinks=None if s_aux is None else s_aux.detach().float().numpy(),
    )
    return out, None


def _padding_mask(*_: Any, attention_mask: Tensor | None = None, **__: Any) -> Tensor | None:
    """The mask of padding as it is: causality and windows are the library's business."""
    return attention_mask


def use_our_attention(model: Any) -> None:
    """The model attends through the caches that it is given from now on."""
    from transformers.masking_utils import AttentionMaskInterface
    from transformers.modeling_utils import AttentionInterface

    AttentionInterface.register(IMPLEMENTATION, _attention)
    AttentionMaskInterface.register(IMPLEMENTATION, _padding_mask)
    try:
        model.set_attn_implementation(IMPLEMENTATION)
    except Exception as error:
        raise UnsupportedError(
            f"{type(model).__name__} takes no attention implementation of ours: {first_line(error)}"
        ) from None
