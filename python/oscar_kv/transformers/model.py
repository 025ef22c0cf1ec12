"""A Hugging Face model as calibration and cache see it: shape, name, hash of its weights."""

import dataclasses
import os
from typing import Any

import torch

from oscar_kv.artefact import ModelShape
from oscar_kv.errors import CorruptError, NotFoundError, UnsupportedError
from oscar_kv.weights import hash_parameters

# Kinds of layers whose keys and values lie in an ordinary cache.
ATTENTION_LAYERS = ("full_attention", "sliding_attention")


@dataclasses.dataclass(frozen=True)
class Described:
    architecture: str  # as GGUF files call it: "llama", "qwen2", "gemma3"
    shape: ModelShape
    weights_hash: str  # "" where weights are quantized


def first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def require_folder(folder: str | os.PathLike[str]) -> None:
    if not os.path.isdir(folder):
        raise NotFoundError(f"{folder}: no such folder; right: one with config.json and weights")
    if not os.path.isfile(os.path.join(folder, "config.json")):
        raise NotFoundError(f"{folder}: it has no config.json; right: a Hugging Face model folder")


def load_model(folder: str | os.PathLike[str], dtype: str = "float32") -> Any:
    """The causal language model of a folder, nothing downloaded."""
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    require_folder(folder)
    logging.disable_progress_bar()
    try:
        model = AutoModelForCausalLM.from_pretrained(
            folder, dtype=getattr(torch, dtype), local_files_only=True
        )
    except Exception as error:
        raise CorruptError(
            f"{folder}: the model could not be loaded: {first_line(error)}"
        ) from None
    return model.eval()


def load_tokenizer(folder: str | os.PathLike[str]) -> Any:
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except Exception as error:
        raise CorruptError(
            f"{folder}: the tokenizer could not be loaded: {first_line(error)}"
        ) from None


def text_config(model: Any) -> Any:
    return model.config.get_text_config(decoder=True)


def require_ordinary_attention(config: Any) -> None:
    """Raises UnsupportedError for models whose keys and values are not a plain cache."""
    name = config.model_type
    if getattr(config, "is_encoder_decoder", False):
        raise UnsupportedError(f"{name}: encoder-decoder models are not supported")
    if getattr(config, "kv_lora_rank", None):
        raise UnsupportedError(f"{name}: latent attention (MLA) has no keys and values to store")
    if getattr(config, "num_kv_shared_layers", 0):
        raise UnsupportedError(f"{name}: layers that share keys and values are not supported")
    for layer, kind in enumerate(getattr(config, "layer_types", None) or []):
        if kind not in ATTENTION_LAYERS:
            raise UnsupportedError(f"{name}: layer {layer} is {kind}; ordinary attention only")


def shape_of(config: Any) -> ModelShape:
    num_q_heads = config.num_attention_heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // num_q_heads
    return ModelShape(
        config.num_hidden_layers,
        num_q_heads,
        getattr(config, "num_key_value_heads", None) or num_q_heads,
        head_dim,
        head_dim,
    )


def architecture_of(config: Any) -> str:
    """The name that GGUF files use."""
    name = config.model_type.removesuffix("_text").replace("_", "")
    return {"mistral": "llama"}.get(name, name)


def weights_hash(model: Any) -> str:
    """Over some elements of every parameter, rounded to BF16: the same for any loaded type.

    Kept on the model, so that it stays that of the checkpoint when weights are changed in place.
    """
    known = getattr(model, "_oscar_weights_hash", None)
    if known is not None:
        return known
    model._oscar_weights_hash = hash_parameters(model.named_parameters())
    return model._oscar_weights_hash


def describe(model: Any) -> Described:
    config = text_config(model)
    require_ordinary_attention(config)
    return Described(architecture_of(config), shape_of(config), weights_hash(model))


def describe_folder(folder: str | os.PathLike[str]) -> Described:
    return describe(load_model(folder))
