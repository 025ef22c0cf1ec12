"""Layers of a GPU worker, and what a step looks like to them."""

from typing import Any

import torch
from torch import Tensor

from oscar_kv.errors import UnsupportedError
from oscar_kv.serving.copy_notes import CopyNotes
from oscar_kv.serving.cuda_layers import CudaLayers, causal_attention, make_cuda_layers
from oscar_kv.serving.cuda_plans import CudaStep
from oscar_kv.serving.decode_book import decode_step


def dense_attention() -> Any:
    """vLLM's FlashAttention over rows, causal, as the backends of vLLM itself choose it."""
    from vllm.v1.attention.backends.fa_utils import (
        flash_attn_varlen_func,
        get_flash_attn_version,
    )

    version = get_flash_attn_version()
    if version is None:
        raise UnsupportedError("vLLM has no FlashAttention for this card; prompts attend with it")

    def varlen(q, keys, values, scale, out, bounds) -> None:
        flash_attn_varlen_func(
            q=q,
            k=keys,
            v=values,
            softmax_scale=scale,
            causal=True,
            out=out,
            fa_version=version,
            **bounds,
        )

    return causal_attention(varlen)


def make_layers(worker: Any) -> CudaLayers[str]:
    """All layers of this process; their pools and workspaces are taken here."""
    config = worker.config
    if config.model_config.dtype != torch.bfloat16:
        raise UnsupportedError(f"dtype is {config.model_config.dtype}; right on CUDA: bfloat16")
    return make_cuda_layers(
        worker.served,
        worker.windows,
        worker.local_layers,
        worker.num_blocks,
        worker.max_position,
        config.scheduler_config.max_num_seqs,
        dense_attention(),
    )


class CudaSteps:
    """Builds steps in buffers that stay where they are, for graphs."""

    def __init__(self, worker: Any) -> None:
        scheduler, windows = worker.config.scheduler_config, worker.windows
        self._worker, self._most_seqs = worker, scheduler.max_num_seqs
        most_tokens = scheduler.max_num_batched_tokens
        self._blocks = torch.full((self._most_seqs,), -1, dtype=torch.int64, device="cuda")
        self._positions = torch.full((most_tokens,), -1, dtype=torch.int32, device="cuda")
        self.notes = CopyNotes(
            worker.cuda_layers.pools,
            windows.sink_tokens,
            self._most_seqs,
            most_tokens,
            "cuda",
            decode_step,
        )

    def build(self, common: Any, num_pages: int, for_capture: bool = False) -> CudaStep:
        num_seqs, num_tokens = common.num_reqs, common.num_actual_tokens
        single = common.max_query_len == 1
        starts = lengths = None
        if not single:
            starts = common.query_start_loc_cpu[: num_seqs + 1].tolist()
            lengths = common.seq_lens_cpu_upper_bound[:num_seqs].tolist()
        book, copies = self._worker.books.copies(num_pages), None
        blocks = self._blocks[:num_seqs]
        if book is not None and for_capture:
            copies = self.notes.none(num_seqs, num_tokens)
        elif book is not None:
            late = self._find_blocks(common, num_seqs)
            copies = self.notes.note(
                book,
                blocks,
                common.query_start_loc[: num_seqs + 1],
                common.seq_lens[:num_seqs],
                common.block_table_tensor[:num_seqs],
                common.slot_mapping[:num_tokens],
                late=late,
                single=single,
            )
        positions = self._positions[:num_tokens]
        if common.positions is not None and not for_capture:
            positions.copy_(common.positions[:num_tokens])
        return CudaStep(
            num_tokens,
            common.seq_lens[:num_seqs],
            common.block_table_tensor[:num_seqs],
            common.slot_mapping[:num_tokens],
            positions,
            blocks,
            copies,
            starts,
            lengths,
        )

    def _find_blocks(self, common: Any, num_seqs: int) -> list[int]:
        """Fills the blocks of the sequences; those that begin behind tokens they have not seen."""
        on_device, on_host = rows_of_requests(common)
        count = min(len(on_host), num_seqs)
        rows = self._worker.books.rows(self._most_seqs, gives_back=False)
        ends = common.seq_lens_cpu_upper_bound[:count]
        starts = common.query_start_loc_cpu[: count + 1]
        late = rows.begin(
            on_host[:count], (ends - (starts[1:] - starts[:-1])).numpy(), ends.numpy()
        )
        if on_device is None:
            on_device = torch.from_numpy(on_host[:count]).to("cuda", non_blocking=True)
        self._blocks[:num_seqs].fill_(-1)
        self._blocks[:count].copy_(rows.of(on_device[:count].long()))
        return late


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
