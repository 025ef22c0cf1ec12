"""Layers of a GPU worker, and what a step looks like to them."""

import dataclasses
import logging
from typing import Any

import torch
from torch import Tensor

from oscar_kv.errors import UnsupportedError
from oscar_kv.serving.copies import Copies
from oscar_kv.serving.cuda_layer import CudaLayer, CudaStep, Plans, Prefill
from oscar_kv.serving.cuda_library import CudaLibrary
from oscar_kv.serving.cuda_selftest import NUM_TOKENS, check_cuda_layer
from oscar_kv.serving.decode_book import decode_step

logger = logging.getLogger("vllm.oscar_kv")


def dense_attention() -> Any:
    """vLLM's FlashAttention over rows, causal, as the backends of vLLM itself choose it."""
    from vllm.v1.attention.backends.fa_utils import (
        flash_attn_varlen_func,
        get_flash_attn_version,
    )

    version = get_flash_attn_version()
    if version is None:
        raise UnsupportedError("vLLM has no FlashAttention for this card; prompts attend with it")

    def attend(q: Tensor, keys: Tensor, values: Tensor, scale: float, out: Tensor) -> None:
        bounds = torch.tensor([[0, len(q)], [0, len(keys)]], dtype=torch.int32).cuda(
            non_blocking=True
        )
        flash_attn_varlen_func(
            q=q,
            k=keys,
            v=values,
            max_seqlen_q=len(q),
            cu_seqlens_q=bounds[0],
            max_seqlen_k=len(keys),
            cu_seqlens_k=bounds[1],
            softmax_scale=scale,
            causal=True,
            out=out,
            fa_version=version,
        )

    return attend


def make_layers(worker: Any) -> dict[str, CudaLayer]:
    """All layers of this process; their pools and workspaces are taken here."""
    shape, windows, config = worker.served.shape, worker.windows, worker.config
    if config.model_config.dtype != torch.bfloat16:
        raise UnsupportedError(f"dtype is {config.model_config.dtype}; right on CUDA: bfloat16")
    names = worker.local_layers
    library = CudaLibrary()
    codecs = {name: worker.served.codec(i, worker.max_position) for name, i in names.items()}
    plans = Plans(library, list(codecs.values()), windows, torch.cuda.current_device())
    prefill = Prefill(shape, max(worker.max_position + 1, NUM_TOKENS), dense_attention())
    pool = None
    if windows.rows_per_block:
        room = (worker.num_blocks, shape.num_kv_heads, 2, windows.rows_per_block, shape.head_dim_k)
        pool = torch.zeros((len(names), *room), dtype=torch.bfloat16, device="cuda")
    layers = {}
    for i, (name, codec) in enumerate(codecs.items()):
        layers[name] = CudaLayer(codec, windows, plans, prefill, None if pool is None else pool[i])
    check_cuda_layer(worker.served, library, prefill)
    # Workspaces of every batch that may come, before vLLM measures what memory is left.
    for size in range(1, config.scheduler_config.max_num_seqs + 1):
        plans[size]
    logger.info(
        "oscar-kv: attention kernel %s, workspaces %.1f MiB, room for continued prompts %.1f MiB",
        plans.kernel,
        plans.num_bytes / 2**20,
        prefill.num_bytes / 2**20,
    )
    worker.cuda_steps = CudaSteps(worker)
    worker.plans = plans
    return layers


class CudaSteps:
    """Builds steps in buffers that stay where they are, for graphs."""

    def __init__(self, worker: Any) -> None:
        scheduler = worker.config.scheduler_config
        self._worker = worker
        most_tokens = scheduler.max_num_batched_tokens
        most_seqs = scheduler.max_num_seqs

        def buffer(size: int, dtype: torch.dtype) -> Tensor:
            return torch.full((size,), -1, dtype=dtype, device="cuda")

        self._rows = buffer(most_seqs, torch.int64)
        self._positions = buffer(most_tokens, torch.int32)
        self._copies = Copies(
            buffer(most_tokens, torch.int64),
            buffer(most_seqs, torch.int32),
            buffer(most_seqs, torch.int64),
            torch.zeros(most_seqs, dtype=torch.bool, device="cuda"),
            buffer(most_seqs, torch.int64),
        )
        self._ends: dict[int, int] = {}  # row → tokens of its request, as the host knows them

    def build(self, common: Any, num_pages: int, for_capture: bool = False) -> CudaStep:
        num_seqs, num_tokens = common.num_reqs, common.num_actual_tokens
        single = common.max_query_len == 1
        starts = lengths = None
        if not single:
            starts = common.query_start_loc_cpu[: num_seqs + 1].tolist()
            lengths = common.seq_lens_cpu_upper_bound[:num_seqs].tolist()
        book, copies, takes_sinks = self._worker.book(num_pages), None, False
        rows = self._rows[:num_seqs]
        if book is not None:
            copies = Copies(
                self._copies.slots[:num_tokens],
                *(
                    getattr(self._copies, name)[:num_seqs]
                    for name in ("blocks", "exact_from", "sinks", "donors")
                ),
            )
            if for_capture:
                copies.slots.fill_(-1)
                copies.blocks.fill_(-1)
            else:
                takes_sinks = self._note_rows(common, num_seqs)
                self._advance(book, common, rows, copies, single and not takes_sinks)
        positions = self._positions[:num_tokens]
        if common.positions is not None and not for_capture:
            positions.copy_(common.positions[:num_tokens])
        return CudaStep(
            num_tokens,
            common.seq_lens[:num_seqs],
            common.block_table_tensor[:num_seqs],
            common.slot_mapping[:num_tokens],
            positions,
            rows,
            copies,
            starts,
            lengths,
            takes_sinks,
        )

    def _advance(self, book: Any, common: Any, rows: Tensor, copies: Copies, single: bool) -> None:
        num_seqs, num_tokens = common.num_reqs, common.num_actual_tokens
        arguments = (
            rows,
            common.query_start_loc[: num_seqs + 1],
            common.seq_lens[:num_seqs],
            common.block_table_tensor[:num_seqs],
            common.slot_mapping[:num_tokens],
        )
        if single:
            decode_step(book, copies, *arguments)
            return
        result = book.step(*arguments)
        for field in dataclasses.fields(Copies):
            getattr(copies, field.name).copy_(getattr(result, field.name))

    def _note_rows(self, common: Any, num_seqs: int) -> bool:
        """Fills the rows of the sequences; whether one may find its first tokens with another."""
        on_device, on_host = rows_of_requests(common)
        count = min(len(on_host), num_seqs)
        self._rows[:num_seqs].fill_(-1)
        numbers = self._rows[:count]
        if on_device is None:
            numbers.copy_(torch.from_numpy(on_host[:count]), non_blocking=True)
        else:
            numbers.copy_(on_device[:count])
        numbers.masked_fill_(numbers >= self._worker.num_blocks, -1)
        bounds = common.seq_lens_cpu_upper_bound
        starts = common.query_start_loc_cpu
        ends = bounds[:count].tolist()
        firsts = (bounds[:count] - (starts[1 : count + 1] - starts[:count])).tolist()
        begins_late = False
        for row, first, end in zip(on_host[:count].tolist(), firsts, ends, strict=True):
            begins_late |= first > 0 and self._ends.get(row) != first
            self._ends[row] = end
        return begins_late and self._worker.windows.sink_tokens > 0


def rows_of_requests(common: Any) -> tuple[Tensor | None, Any]:
    """Row of each request in the runner's table: on the device if it is there, and on the host."""
    on_host = getattr(common, "req_idx", None)
    if on_host is not None:
        return None, on_host
    from oscar_kv.vllm.compat_0_25 import current_rows

    rows = current_rows()
    if rows is None:
        raise UnsupportedError(
            "this model runner does not number its requests, which exact copies need; right: "
            "VLLM_USE_V2_MODEL_RUNNER=1, or options :sink=0,recent=0"
        )
    return rows
