"""What a step looks like to all layers, made once a step from vLLM's metadata."""

from typing import Any, ClassVar

import numpy as np
import torch
from vllm.v1.attention.backend import (
    AttentionCGSupport,
    AttentionMetadataBuilder,
    CommonAttentionMetadata,
)

from oscar_kv.serving.cpu_layer import CpuStep
from oscar_kv.vllm.worker import worker_of


class OscarBuilder(AttentionMetadataBuilder):
    """One for all layers: they have one kind of cache."""

    _cudagraph_support: ClassVar[AttentionCGSupport] = (
        AttentionCGSupport.UNIFORM_SINGLE_TOKEN_DECODE
    )

    def __init__(
        self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: torch.device
    ) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        self._init_reorder_batch_threshold(1)
        self.worker = worker_of(vllm_config)

    def _num_pages(self) -> int:
        context = self.vllm_config.compilation_config.static_forward_context
        cache = context[self.layer_names[0]].kv_cache
        return (cache[0] if isinstance(cache, list) else cache).shape[0]

    def build(
        self,
        common_prefix_len: int,
        common_attn_metadata: CommonAttentionMetadata,
        fast_build: bool = False,
    ) -> Any:
        self.worker.not_finite.check()
        if self.worker.device.type == "cpu":
            return self._build_cpu(common_attn_metadata)
        return self.worker.cuda_steps.build(common_attn_metadata, self._num_pages())

    def build_for_cudagraph_capture(self, common_attn_metadata: CommonAttentionMetadata) -> Any:
        return self.worker.cuda_steps.build(
            common_attn_metadata, self._num_pages(), for_capture=True
        )

    def _build_cpu(self, common: CommonAttentionMetadata) -> CpuStep:
        starts = common.query_start_loc_cpu.numpy().astype(np.int64)
        lengths = common.seq_lens.numpy().astype(np.int64)
        table = common.block_table_tensor.numpy()
        slots = common.slot_mapping.numpy().astype(np.int64)[: starts[-1]]
        counts = np.diff(starts)
        first = np.repeat(lengths - counts, counts)
        positions = first + np.arange(starts[-1]) - np.repeat(starts[:-1], counts)
        num_pages = self._num_pages()
        books, copies = self.worker.books, None
        book = books.copies(num_pages)
        blocks = np.full(len(lengths), -1, np.int64)
        if book is not None:
            blocks = books.by_pages(num_pages).rows(starts, lengths, table)
            arrays = (blocks, starts, lengths, table, slots)
            copies = book.step(*(torch.from_numpy(np.ascontiguousarray(a)) for a in arrays))
        return CpuStep(starts, lengths, table, positions.astype(np.int32), slots, blocks, copies)
