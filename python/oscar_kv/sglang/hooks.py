"""What the plugin wraps in SGLang, each by its HookRegistry; nothing happens for other backends."""

import dataclasses
import logging
from collections.abc import Callable
from typing import Any

from oscar_kv.codec import PAGE_TOKENS
from oscar_kv.sglang import refusals, settings
from oscar_kv.sglang.worker import Worker, current_worker, find_worker, set_worker

logger = logging.getLogger("sglang.oscar_kv")

SRT = "sglang.srt"
CONFIGURATOR = f"{SRT}.mem_cache.kv_cache_configurator.KVCacheConfigurator"
POOL_SIZES = f"{SRT}.model_executor.pool_configurator.DefaultPoolConfigurator"
ROWS = f"{SRT}.mem_cache.memory_pool.ReqToTokenPool"
ARGUMENTS = f"{SRT}.arg_groups"


def chosen(options: Any) -> bool:
    """options: SGLang's ServerArgs or a view of them."""
    names = ("attention_backend", "prefill_attention_backend", "decode_attention_backend")
    return refusals.NAME in [getattr(options, name) for name in names]


# ---- options ----


def page_size_default(original: Callable[..., Any], view: Any) -> dict[str, Any]:
    if chosen(view) and view.page_size is None:
        return {"page_size": PAGE_TOKENS}
    return original(view)


def cuda_graph_compatibility(original: Callable[..., Any], server_args: Any) -> None:
    """Prompts are not captured in graphs, unless the user asks for it (which is refused)."""
    from sglang.srt.arg_groups.model_override_base import resolving_view
    from sglang.srt.arg_groups.overrides import declare_resolution
    from sglang.srt.model_executor.cuda_graph_config import Backend, Phase, with_phase

    original(server_args)
    view = resolving_view(server_args)
    if (Phase.PREFILL, "backend") in server_args._cuda_graph_config_locked or not chosen(view):
        return
    graphs = with_phase(view.cuda_graph_config, Phase.PREFILL, backend=Backend.DISABLED)
    declare_resolution(server_args, "oscar_kv", cuda_graph_config=graphs)


# ---- the cache ----


def configure(original: Callable[..., Any], self: Any, **arguments: Any) -> Any:
    """Before SGLang measures memory: refusals, and everything of ours that takes memory."""
    from sglang.srt.arg_groups.model_override_base import resolved_view

    set_worker(None)  # an engine that this process had before
    options = resolved_view(self.server_args)
    if not chosen(options):
        return original(self, **arguments)
    refusals.check_options(options)
    set_worker(make_worker(self, options))
    current_worker().allocate()
    return original(self, **arguments)


def cell_size(original: Callable[..., Any], self: Any, kvc: Any, num_layers: int) -> int:
    worker = find_worker()
    return original(self, kvc, num_layers) if worker is None else worker.bytes_per_token(num_layers)


def build_pool(original: Callable[..., Any], self: Any, **arguments: Any) -> Any:
    if find_worker() is not None:
        from oscar_kv.sglang.pool import OscarTokenToKVPool

        arguments["mha_pool_class"] = OscarTokenToKVPool
    return original(self, **arguments)


def most_prefix(original: Callable[..., int], self: Any, input_len: int) -> int:
    """Tokens of a prompt that may come from the radix cache."""
    worker, most = find_worker(), original(self, input_len)
    return most if worker is None else max(0, min(most, input_len - worker.computed_tokens))


def free_rows(result: Any, self: Any, indices: list[int]) -> None:
    worker = find_worker()
    if worker is not None:
        worker.free_rows(indices)


def clear_rows(result: Any, self: Any) -> None:
    worker = find_worker()
    if worker is not None:
        worker.clear_rows()


def make_worker(configurator: Any, options: Any) -> Worker:
    import torch
    from sglang.srt.layers.radix_attention import RadixAttention
    from sglang.srt.runtime_context import get_parallel

    from oscar_kv.transformers.model import (
        architecture_of,
        require_ordinary_attention,
        shape_of,
    )
    from oscar_kv.weights import folder_hash

    refusals.check_model(configurator, hip=torch.version.hip is not None)
    model, info, parallel = configurator.model_config, configurator.layer_info, get_parallel()
    config = model.hf_text_config
    require_ordinary_attention(config)
    worker = Worker(
        chosen=settings.read(),
        device=configurator.device,
        shape=dataclasses.replace(
            shape_of(config), head_dim_k=model.head_dim, head_dim_v=model.v_head_dim
        ),
        architecture=architecture_of(config),
        weights_hash=folder_hash(model.model_path, config),
        layers=range(info.start_layer, info.end_layer),
        context_tokens=model.context_len,
        max_requests=options.max_running_requests,
        rank=parallel.attn_tp_rank,
        ranks=parallel.attn_tp_size,
    )
    refusals.check_type(configurator.kv_cache_dtype, worker.device)
    for module in configurator.model.modules():
        if isinstance(module, RadixAttention):
            refusals.check_layer(module, worker.head_sizes)
    return worker


def register(registry: Any, kinds: Any) -> None:
    """registry, kinds: SGLang's HookRegistry and HookType."""
    around, after = kinds.AROUND, kinds.AFTER
    for target, hook, kind in (
        (f"{ARGUMENTS}.overrides._page_size_default", page_size_default, around),
        (
            f"{ARGUMENTS}.cuda_graph_hook.apply_cuda_graph_compatibility",
            cuda_graph_compatibility,
            around,
        ),
        (f"{CONFIGURATOR}.configure", configure, around),
        (f"{CONFIGURATOR}._build_mha_kv_pool", build_pool, around),
        (f"{POOL_SIZES}._compute_cell_size", cell_size, around),
        (f"{SRT}.managers.schedule_batch.Req._compute_max_prefix_len", most_prefix, around),
        (f"{ROWS}.free_rows", free_rows, after),
        (f"{ROWS}.clear", clear_rows, after),
    ):
        registry.register(target, hook, kind)
