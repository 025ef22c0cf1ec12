"""The attention backend oscar: what SGLang asks of a backend."""

from typing import Any

import torch
from sglang.srt.layers.attention.base_attn_backend import AttentionBackend

from oscar_kv.codec import PAGE_TOKENS
from oscar_kv.errors import UnsupportedError
from oscar_kv.sglang import refusals
from oscar_kv.sglang.pool import OscarTokenToKVPool
from oscar_kv.sglang.steps import CpuSteps, CudaSteps
from oscar_kv.sglang.worker import current_worker


class OscarAttnBackend(AttentionBackend):
    """runner: SGLang's ModelRunner, its pools made."""

    def __init__(self, runner: Any) -> None:
        super().__init__()
        self.worker = current_worker()
        self.token_to_kv_pool = runner.token_to_kv_pool
        self.req_to_token_pool = runner.req_to_token_pool
        if not isinstance(self.token_to_kv_pool, OscarTokenToKVPool) or not self.worker.sized:
            raise UnsupportedError(
                f"SGLang made a {type(self.token_to_kv_pool).__name__} for this model, sized "
                f"{'for packed pages' if self.worker.sized else 'for BF16'}; attention backend "
                "oscar needs the pool of its plugin"
            )
        self.forward_metadata: Any = None
        table = self.req_to_token_pool.req_to_token
        num_pages = self.token_to_kv_pool.num_pages
        if self.worker.device.type == "cpu":
            self.steps: Any = CpuSteps(self.worker, table, num_pages)
        else:
            from oscar_kv.serving.decode_book import decode_step

            max_seqs = table.shape[0] + PAGE_TOKENS  # graphs' batches are rounded up
            max_tokens = self.token_to_kv_pool.size + max_seqs
            self.steps = CudaSteps(self.worker, table, num_pages, max_seqs, max_tokens, decode_step)

    # ---- metadata ----

    def init_forward_metadata_out_graph(self, forward_batch: Any, in_capture: bool = False) -> None:
        self.worker.not_finite.check()
        mode = forward_batch.forward_mode
        if mode.is_idle():
            self.forward_metadata = None
        elif self.worker.device.type == "cpu":
            self.forward_metadata = self.steps.build(forward_batch)
        else:
            self.forward_metadata = self.steps.build(forward_batch, for_capture=in_capture)

    def init_cuda_graph_state(self, max_bs: int, max_num_tokens: int) -> None:
        """The buffers of the steps are for the largest batches already."""

    def get_cuda_graph_seq_len_fill_value(self) -> int:
        return 1  # a padded request reads the one token of the page of padding

    # ---- layers ----

    def forward_extend(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        layer: Any,
        forward_batch: Any,
        save_kv_cache: bool = True,
        **others: Any,
    ) -> torch.Tensor:
        """q: [tokens, num_q_heads · head_dim]; k, v: [tokens, num_kv_heads, head_dim]."""
        refusals.check_call(
            has_rows=k is not None and v is not None, save_kv_cache=save_kv_cache, others=others
        )
        rows = q.view(-1, layer.tp_q_head_num, layer.qk_head_dim)
        k = k.view(-1, layer.tp_k_head_num, layer.qk_head_dim)
        v = v.view(-1, layer.tp_v_head_num, layer.v_head_dim)
        step, ours = self.forward_metadata, self.worker.layers[layer.layer_id]
        pages = ours.pages_of(self.token_to_kv_pool.pages_of(layer.layer_id))
        out = torch.zeros_like(rows) if len(rows) > step.num_tokens else torch.empty_like(rows)
        ours.write(k, v, step, pages)
        ours.attend(rows, k, v, step, pages, out, scale=layer.scaling)
        return out.view(len(rows), -1)

    forward_decode = forward_extend

    def support_triton(self) -> bool:
        return self.worker.device.type != "cpu"
