"""vLLM 0.25: the cache's spec was made by the layer, before backends could change it."""

import dataclasses
from typing import Any

import torch


def install() -> None:
    """Lets `Attention.get_kv_cache_spec` state our bytes for layers of our backend."""
    from vllm.model_executor.layers.attention import Attention
    from vllm.v1.kv_cache_interface import TQFullAttentionSpec

    from oscar_kv.vllm.backend import OscarImpl
    from oscar_kv.vllm.worker import worker_of

    original = Attention.get_kv_cache_spec
    if getattr(original, "oscar_kv", False):
        return

    def get_kv_cache_spec(self: Any, vllm_config: Any) -> Any:
        spec = original(self, vllm_config)
        if not isinstance(self.impl, OscarImpl):
            return spec
        fields = {f.name: getattr(spec, f.name) for f in dataclasses.fields(spec) if f.init}
        fields["dtype"] = torch.uint8
        # The one spec of 0.25 that takes any number of bytes a token and head.
        size = worker_of(vllm_config).served.token_head_bytes
        return TQFullAttentionSpec(**fields, tq_slot_size=size)

    get_kv_cache_spec.oscar_kv = True
    Attention.get_kv_cache_spec = get_kv_cache_spec


_rows: tuple[torch.Tensor, Any] | None = None


def current_rows() -> tuple[torch.Tensor, Any] | None:
    """Rows of the batch whose metadata is being built: on the device, and on the host."""
    return _rows


def install_rows() -> None:
    """Notes each batch's rows, which 0.25 does not hand to builders."""
    from vllm.v1.worker.gpu.model_states.default import DefaultModelState

    original = DefaultModelState.prepare_attn
    if getattr(original, "oscar_kv", False):
        return

    def prepare_attn(self: Any, input_batch: Any, *arguments: Any, **keywords: Any) -> Any:
        global _rows
        _rows = (input_batch.idx_mapping, input_batch.idx_mapping_np)
        try:
            return original(self, input_batch, *arguments, **keywords)
        finally:
            _rows = None

    prepare_attn.oscar_kv = True
    DefaultModelState.prepare_attn = prepare_attn
