"""The attention backend OSCAR: what vLLM asks of a backend, for the versions of `versions`."""

import dataclasses
import functools
from typing import Any, ClassVar

import torch
import vllm
from vllm.config import get_current_vllm_config
from vllm.forward_context import get_forward_context
from vllm.v1.attention.backend import (
    AttentionBackend,
    AttentionImpl,
    AttentionType,
)

from oscar_kv.codec import PAGE_TOKENS
from oscar_kv.serving.cuda_library import CudaLibrary
from oscar_kv.vllm import refusals, versions
from oscar_kv.vllm.builder import OscarBuilder
from oscar_kv.vllm.plugin import registered_name
from oscar_kv.vllm.worker import CPU_HEAD_SIZES, current_worker, worker_of

versions.check(vllm.__version__)


class OscarBackend(AttentionBackend):
    """Packed pages of 64 tokens, head after head; a token and head is a slot of a few bytes."""

    forward_includes_kv_cache_update = False
    supported_dtypes: ClassVar[list[torch.dtype]] = [torch.bfloat16, torch.float16, torch.float32]
    supported_kv_cache_dtypes: ClassVar[list[str]] = ["auto"]

    @staticmethod
    def get_name() -> str:
        return registered_name()

    @staticmethod
    def get_impl_cls() -> type["OscarImpl"]:
        return OscarImpl

    @staticmethod
    def get_builder_cls() -> type[OscarBuilder]:
        return OscarBuilder

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec: Any = None) -> list[int]:
        return [PAGE_TOKENS]

    @classmethod
    def get_supported_head_sizes(cls) -> list[int]:
        return list(CPU_HEAD_SIZES)  # those of the device are checked where layers are made

    @classmethod
    def supported_kv_cache_layouts(cls) -> tuple[Any, ...]:
        from vllm.v1.kv_cache_layout import KVCacheLayout

        return (KVCacheLayout.LBHNC,)

    @classmethod
    def customize_spec(cls, spec: Any) -> Any:
        """The true bytes of a token and KV head, and where prefix hits end."""
        from oscar_kv.vllm.prefix import window_spec

        worker = current_worker()
        ours = dataclasses.replace(
            spec, dtype=torch.uint8, state_content_bytes=worker.served.token_head_bytes
        )
        return window_spec(ours, worker.computed_tokens)

    # Before 0.26, where a backend shapes its own cache (compat_0_25 makes the spec).

    @staticmethod
    def get_kv_cache_shape(
        num_blocks: int,
        block_size: int,
        num_kv_heads: int,
        head_size: int,
        cache_dtype_str: str = "auto",
    ) -> tuple[int, ...]:
        bytes_of_token = current_worker().served.token_head_bytes
        return (num_blocks, num_kv_heads, block_size, bytes_of_token)


@functools.cache
def check_gpu() -> None:
    """Once a process, before weights are loaded: raises where the library lacks this GPU."""
    CudaLibrary().check_device(torch.cuda.current_device())


class OscarImpl(AttentionImpl):
    """One layer: writes into the engine's cache, attends over it."""

    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int | None = None,
        alibi_slopes: list[float] | None = None,
        sliding_window: int | None = None,
        kv_cache_dtype: str = "auto",
        logits_soft_cap: float | None = None,
        attn_type: str = AttentionType.DECODER,
        kv_sharing_target_layer_name: str | None = None,
        **others: Any,
    ) -> None:
        self.worker = worker_of(get_current_vllm_config())
        refusals.check_layer(
            head_size=head_size,
            head_sizes=self.worker.head_sizes,
            attn_type=str(getattr(attn_type, "value", attn_type)),
            alibi_slopes=alibi_slopes,
            sliding_window=sliding_window,
            logits_soft_cap=logits_soft_cap,
            kv_sharing_target_layer_name=kv_sharing_target_layer_name,
            others=others,
        )
        if self.worker.device.type == "cuda":
            check_gpu()
        self.num_heads, self.head_size, self.scale = num_heads, head_size, float(scale)
        self.num_kv_heads = num_kv_heads or num_heads
        self.kv_cache_dtype = kv_cache_dtype

    def process_weights_after_loading(self, act_dtype: torch.dtype) -> None:
        self.worker.allocate()

    def do_kv_cache_update(
        self,
        layer: Any,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        slot_mapping: torch.Tensor,
    ) -> None:
        """key, value: [tokens, num_kv_heads, head_size], keys after RoPE."""
        step = _step_of(layer.layer_name)
        if step is not None and kv_cache.numel():
            ours = self.worker.layers[layer.layer_name]
            ours.write(key, value, step, ours.pages_of(kv_cache))

    def forward(
        self,
        layer: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        attn_metadata: Any,
        output: torch.Tensor | None = None,
        output_scale: torch.Tensor | None = None,
        output_block_scale: torch.Tensor | None = None,
    ) -> torch.Tensor:
        if attn_metadata is None:  # a run that measures memory
            return output.fill_(0)
        ours = self.worker.layers[layer.layer_name]
        ours.attend(
            query, key, value, attn_metadata, ours.pages_of(kv_cache), output, scale=self.scale
        )
        return output


def _step_of(layer_name: str) -> Any:
    metadata = get_forward_context().attn_metadata
    return metadata[layer_name] if isinstance(metadata, dict) else metadata


if versions.parse(vllm.__version__) < (0, 26):
    from oscar_kv.vllm import compat_0_25

    compat_0_25.install()
    if torch.cuda.is_available():
        compat_0_25.install_rows()
