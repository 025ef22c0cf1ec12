"""Small models: random ones made here, and SmolLM2-135M out of its GGUF file."""

import os
import pathlib

import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

torch.set_num_threads(1)

VOCABULARY = 200


def tiny(kind: str = "llama", seed: int = 1):
    """A random model of two layers, 4 query and 2 KV heads of 64."""
    torch.manual_seed(seed)
    common = {
        "vocab_size": VOCABULARY,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "max_position_embeddings": 4096,
        "initializer_range": 0.15,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": None,
    }
    if kind == "llama":
        model = LlamaForCausalLM(LlamaConfig(**common))
    elif kind == "qwen3":
        model = Qwen3ForCausalLM(Qwen3Config(**common))
    elif kind == "gemma3":
        layers = ["sliding_attention", "full_attention"]
        config = Gemma3TextConfig(**common, sliding_window=32, layer_types=layers)
        model = Gemma3ForCausalLM(config)
    else:
        raise ValueError(kind)
    return model.eval()


def tokens(count: int, seed: int = 1, batch: int = 1) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(2, VOCABULARY, (batch, count), generator=generator)


def smollm2() -> pathlib.Path:
    """Folder with SmolLM2-135M-Instruct as Hugging Face has it, made once from the GGUF file."""
    source = pathlib.Path(os.environ["OSCAR_TEST_GGUF"])
    folder = pathlib.Path(os.environ["OSCAR_CACHE_DIR"]) / "hugging-face" / source.stem
    if not (folder / "config.json").is_file():
        from transformers import AutoTokenizer

        part = folder.with_suffix(".part")
        where = {"gguf_file": source.name}
        AutoTokenizer.from_pretrained(source.parent, **where).save_pretrained(part)
        model = AutoModelForCausalLM.from_pretrained(source.parent, dtype=torch.float32, **where)
        # Its weights are plain by now, but it still calls itself quantized and refuses to be saved.
        del model.config.quantization_config
        model.hf_quantizer = None
        model.save_pretrained(part)
        part.rename(folder)
    return folder


def load(folder: pathlib.Path):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def kl(model_logits: torch.Tensor, other_logits: torch.Tensor) -> torch.Tensor:
    """KL divergence of each position in nats, [tokens]."""
    p = model_logits.double().log_softmax(-1)
    q = other_logits.double().log_softmax(-1)
    return (p.exp() * (p - q)).sum(-1)
