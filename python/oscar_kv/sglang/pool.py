"""SGLang's pool of token slots, whose bytes are packed pages instead of keys and values."""

from contextlib import nullcontext
from typing import Any

import torch
from sglang.srt.constants import GPU_MEMORY_TYPE_KV_CACHE
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool

from oscar_kv.codec import PAGE_TOKENS
from oscar_kv.errors import InvalidArgumentError, UnsupportedError
from oscar_kv.sglang.worker import current_worker


class OscarTokenToKVPool(MHATokenToKVPool):
    """Page p of a layer holds the slots 64 · p .. 64 · p + 63; page 0 is SGLang's padding."""

    def _create_buffers(self) -> None:
        worker = current_worker()
        if self.page_size != PAGE_TOKENS:
            raise InvalidArgumentError(
                f"--page-size is {self.page_size}; right for attention backend oscar: {PAGE_TOKENS}"
            )
        shape = worker.served.shape
        if (self.head_num, self.head_dim, self.v_head_dim) != (
            shape.num_kv_heads,
            shape.head_dim_k,
            shape.head_dim_v,
        ):
            raise UnsupportedError(
                f"SGLang's pool is for {self.head_num} KV heads of {self.head_dim} and "
                f"{self.v_head_dim}; the model has {shape.num_kv_heads} of {shape.head_dim_k} and "
                f"{shape.head_dim_v} on this rank"
            )
        # Not the model's type: kernels that store BF16 rows next to RoPE look at this first.
        self.dtype = self.store_dtype = torch.uint8
        self.num_pages = -(-self.size // PAGE_TOKENS) + 1
        in_pool = (
            torch.cuda.use_mem_pool(self.custom_mem_pool)
            if self.enable_custom_mem_pool
            else nullcontext()
        )
        with self.memory_saver_adapter.region(GPU_MEMORY_TYPE_KV_CACHE), in_pool:
            self.pages = [
                torch.zeros(
                    (self.num_pages, worker.page_bytes), dtype=torch.uint8, device=self.device
                )
                for _ in range(self.layer_num)
            ]
        self.k_buffer, self.v_buffer = self.pages, []
        self.native_k_scale_buffer = self.native_v_scale_buffer = None
        self.dq_k_buffer = self.dq_v_buffer = None

    def _clear_buffers(self) -> None:
        del self.pages, self.k_buffer, self.v_buffer

    def pages_of(self, layer_id: int) -> torch.Tensor:
        """uint8 [num_pages, page_bytes]."""
        return self.pages[layer_id - self.start_layer]

    def _refuse(self, *arguments: Any, **keywords: Any) -> Any:
        raise UnsupportedError(
            "attention backend oscar has packed pages, no rows of keys and values to read, write "
            "or move; what asked for them is not served with it"
        )

    get_key_buffer = get_value_buffer = get_kv_buffer = set_kv_buffer = _refuse
    get_cpu_copy = load_cpu_copy = move_kv_cache = get_contiguous_buf_infos = _refuse
    get_device_pool_infos = host_pool_decls = _refuse
