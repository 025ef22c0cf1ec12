"""Set-ups that this backend does not serve, refused by name when the engine starts."""

from typing import Any

from oscar_kv.errors import UnsupportedError

# Connectors that move no pages. A benchmark of decoding that pretends a cached prompt adds its own.
HARMLESS_CONNECTORS: set[str] = set()


def check_engine(config: Any) -> None:
    """config: vLLM's VllmConfig. Raises UnsupportedError naming everything that is in the way."""
    model, cache, parallel = config.model_config, config.cache_config, config.parallel_config
    reasons = []
    if getattr(model, "use_mla", False):
        reasons.append("latent attention (MLA) has no keys and values to store")
    if getattr(model, "is_encoder_decoder", False):
        reasons.append("encoder-decoder models (cross attention)")
    if getattr(model, "is_hybrid", False) or getattr(model, "is_attention_free", False):
        reasons.append("layers other than attention")
    if cache.cache_dtype != "auto":
        reasons.append(f"--kv-cache-dtype {cache.cache_dtype} (leave it out: auto)")
    if getattr(cache, "kv_cache_dtype_skip_layers", None):
        reasons.append("--kv-cache-dtype-skip-layers")
    if config.kv_transfer_config is not None:
        connector = getattr(config.kv_transfer_config, "kv_connector", None)
        if connector not in HARMLESS_CONNECTORS:
            reasons.append(f"KV connector {connector}: exact copies do not travel")
    if getattr(cache, "kv_offloading_size", None):
        reasons.append("KV offloading: exact copies do not travel")
    if config.speculative_config is not None:
        reasons.append("speculative decoding: not tested")
    if getattr(parallel, "decode_context_parallel_size", 1) > 1:
        reasons.append("decode context parallelism")
    if getattr(parallel, "prefill_context_parallel_size", 1) > 1:
        reasons.append("prefill context parallelism")
    if getattr(parallel, "enable_dbo", False) or getattr(parallel, "ubatch_size", 0) > 1:
        reasons.append("micro-batches (dual batch overlap)")
    _raise(reasons)


def check_layer(
    *,
    head_size: int,
    head_sizes: tuple[int, ...],
    attn_type: str,
    alibi_slopes: Any,
    sliding_window: int | None,
    logits_soft_cap: float | None,
    kv_sharing_target_layer_name: str | None,
    others: dict[str, Any],
) -> None:
    """What one attention layer asks for. others: arguments of vLLM that this backend lacks."""
    reasons = []
    if head_size not in head_sizes:
        sizes = ", ".join(map(str, head_sizes))
        reasons.append(f"head size {head_size}; supported: {sizes}")
    if attn_type != "decoder":
        reasons.append(f"{attn_type} attention (cross attention, encoders)")
    if alibi_slopes is not None:
        reasons.append("ALiBi")
    if sliding_window is not None:
        reasons.append(f"a sliding window of {sliding_window}")
    if logits_soft_cap:
        reasons.append(f"a soft cap of {logits_soft_cap}")
    if kv_sharing_target_layer_name is not None:
        reasons.append(f"keys and values shared with {kv_sharing_target_layer_name}")
    reasons += [f"{name}" for name, value in others.items() if value is not None]
    _raise(reasons)


def _raise(reasons: list[str]) -> None:
    if reasons:
        raise UnsupportedError(f"attention backend OSCAR does not serve: {'; '.join(reasons)}")
