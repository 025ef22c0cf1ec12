"""Set-ups that this backend does not serve, refused by name when the engine starts."""

from typing import Any

from oscar_kv.codec import PAGE_TOKENS
from oscar_kv.errors import UnsupportedError

NAME = "oscar"
# Options of SGLang (ServerArgs), the value that is served, and what else it would be.
UNTESTED = (
    ("speculative_algorithm", None, "speculative decoding"),
    ("decoupled_spec_role", "null", "decoupled speculative decoding"),
    ("dllm_algorithm", None, "diffusion language models"),
    ("disaggregation_mode", "null", "disaggregation: exact copies do not travel"),
    ("enable_pd_role_switch", False, "disaggregation: exact copies do not travel"),
    ("enable_hierarchical_cache", False, "HiCache: pages are read by their layout"),
    ("enable_lmcache", False, "LMCache: pages are read by their layout"),
    ("enable_flexkv", False, "FlexKV: pages are read by their layout"),
    ("enable_unified_cache_external_linker", False, "external caches"),
    ("enable_hisparse", False, "HiSparse"),
    ("enable_unified_memory", False, "the unified memory pool"),
    ("enable_page_major_kv_layout", False, "page-major pools"),
    ("enable_kv_cache_sharding", False, "a sharded KV cache"),
    ("enable_memory_saver", False, "the memory saver"),
    ("radix_cache_backend", None, "other radix caches"),
    ("enable_session_radix_cache", False, "sessions in the radix cache"),
    ("enable_mixed_chunk", False, "prompts and decoding in one batch"),
    ("enable_two_batch_overlap", False, "micro-batches"),
    ("enable_pdmux", False, "prompts and decoding side by side"),
    ("enable_dp_attention", False, "data-parallel attention"),
    ("enable_prefill_cp", False, "context parallelism"),
    ("attn_cp_size", 1, "context parallelism"),
    ("dcp_size", 1, "decode context parallelism"),
    ("pp_size", 1, "pipeline parallelism"),
    ("enable_torch_compile", False, "torch.compile"),
    ("enable_nvidia_megakernel", False, "the megakernel"),
    ("enable_mis", False, "multi-item scoring"),
    ("is_embedding", False, "embedding models"),
    ("prefill_only_disable_kv_cache", False, "no cache at all"),
    ("kv_canary", "none", "the KV canary, which reads keys and values"),
)
_ABSENT = (None, False, "")


def check_options(options: Any) -> None:
    """options: resolved ServerArgs. Raises UnsupportedError naming everything in the way."""
    reasons = []
    for name, served, meaning in UNTESTED:
        value = getattr(options, name)
        if value != served and not (served in _ABSENT and value in _ABSENT):
            reasons.append(f"{_flag(name)} {value} ({meaning})")
    for name in ("prefill_attention_backend", "decode_attention_backend"):
        if getattr(options, name) not in (None, NAME):
            reasons.append(f"{_flag(name)} {getattr(options, name)} (both are {NAME}, or neither)")
    if options.kv_cache_dtype != "auto":
        reasons.append(f"--kv-cache-dtype {options.kv_cache_dtype} (leave it out: auto)")
    if options.page_size != PAGE_TOKENS:
        reasons.append(f"--page-size {options.page_size} (right: {PAGE_TOKENS})")
    graphs = options.cuda_graph_config
    if graphs is not None:
        if graphs.prefill.backend != "disabled":
            reasons.append("CUDA graphs of prompts (right: --disable-prefill-cuda-graph)")
        if graphs.decode.backend not in ("full", "disabled"):
            reasons.append(f"{graphs.decode.backend} CUDA graphs of decoding (right: full)")
    _raise(reasons)


def check_model(configurator: Any, *, hip: bool) -> None:
    """configurator: SGLang's KVCacheConfigurator, before it makes pools. hip: of PyTorch."""
    model, reasons = configurator.model_config, []
    if hip or configurator.device not in ("cuda", "cpu"):
        reasons.append(f"device {'rocm' if hip else configurator.device} (right: cuda or cpu)")
    if configurator.use_mla_backend:
        reasons.append("latent attention (MLA) has no keys and values to store")
    if configurator.is_hybrid_swa:
        reasons.append("models with sliding windows")
    if configurator.mambaish_config is not None:
        reasons.append("layers other than attention")
    if getattr(model, "is_encoder_decoder", False):
        reasons.append("encoder-decoder models (cross attention)")
    if configurator.is_draft_worker:
        reasons.append("draft models")
    if configurator.post_capture_kv_active:
        reasons.append("SGLANG_ENABLE_POST_CAPTURE_KV_SIZING")
    _raise(reasons)


def check_type(dtype: Any, device: Any) -> None:
    """dtype: what SGLang resolved --kv-cache-dtype auto to, the model's own."""
    right = ("bfloat16",) if device.type == "cuda" else ("bfloat16", "float16", "float32")
    name = str(dtype).removeprefix("torch.")
    if name not in right:
        _raise([f"keys and values in {name} (right on {device.type}: {', '.join(right)})"])


def check_layer(layer: Any, head_sizes: tuple[int, ...]) -> None:
    """layer: one of SGLang's RadixAttention."""
    reasons = []
    sizes = sorted({layer.qk_head_dim, layer.v_head_dim})
    if len(sizes) > 1 or sizes[0] not in head_sizes:
        supported = ", ".join(map(str, head_sizes))
        reasons.append(f"head size {' and '.join(map(str, sizes))}; supported: {supported}")
    kind = getattr(layer.attn_type, "value", layer.attn_type)
    if layer.is_cross_attention or kind != "decoder":
        reasons.append("cross attention" if layer.is_cross_attention else f"{kind} attention")
    if layer.sliding_window_size is not None and layer.sliding_window_size > -1:
        reasons.append(f"a sliding window of {layer.sliding_window_size}")
    if layer.logit_cap:
        reasons.append(f"a soft cap of {layer.logit_cap}")
    if layer.use_irope or layer.xai_temperature_len > 0:
        reasons.append("a temperature by position")
    if layer.pos_encoding_mode != "NONE":
        reasons.append(f"position encoding {layer.pos_encoding_mode} in the attention")
    if layer.k_scale_float not in (None, 1.0) or layer.v_scale_float not in (None, 1.0):
        reasons.append("scales of keys or values")
    _raise([f"layer {layer.layer_id}: {reason}" for reason in reasons])


def check_call(*, has_rows: bool, save_kv_cache: bool, others: dict[str, Any]) -> None:
    """What a model asks of one call; others: keyword arguments that this backend does not know."""
    reasons = [name for name, value in others.items() if value is not None]
    if not (has_rows and save_kv_cache):
        reasons.append("keys and values that are another layer's, or that another kernel stores")
    _raise(reasons)


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _raise(reasons: list[str]) -> None:
    if reasons:
        raise UnsupportedError(f"attention backend {NAME} does not serve: {'; '.join(reasons)}")
