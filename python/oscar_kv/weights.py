"""A hash over some elements of a model's weights: which model an artefact was made for."""

import json
import os
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from oscar_kv.artefact import hash_hex

# Elements of each parameter that go into the hash.
HASHED_PER_PARAMETER = 256


def hash_parameters(parameters: Iterable[tuple[str, Tensor]]) -> str:
    """Over some elements of every parameter, rounded to BF16; "" where one is quantized."""
    pieces = []
    for name, parameter in sorted(parameters, key=lambda pair: pair[0]):
        if not parameter.is_floating_point():
            return ""
        flat = parameter.detach().reshape(-1)
        step = max(1, flat.numel() // HASHED_PER_PARAMETER)
        sample = flat[::step][:HASHED_PER_PARAMETER].float().cpu().to(torch.bfloat16)
        pieces.append(f"{name} {list(parameter.shape)}\n".encode())
        pieces.append(sample.view(torch.uint16).numpy().tobytes())
    return hash_hex(np.frombuffer(b"".join(pieces), np.uint8))


def folder_hash(folder: str | os.PathLike[str], config: Any) -> str:
    """The same of a folder's safetensors files, without loading the model.

    "" where it is not known: no such files, quantized weights, or a model whose file does not name
    its parameters as the causal language model does. config: the model's, of transformers.
    """
    from safetensors import safe_open

    folder = os.fspath(folder)
    index = os.path.join(folder, "model.safetensors.index.json")
    if os.path.isfile(index):
        with open(index, encoding="utf-8") as file:
            names = sorted(set(json.load(file)["weight_map"].values()))
    else:
        names = ["model.safetensors"]
    paths = [os.path.join(folder, name) for name in names]
    ordinary = getattr(config, "text_config", None) is None
    if not (ordinary and all(os.path.isfile(path) for path in paths)):
        return ""
    if getattr(config, "quantization_config", None):
        return ""
    tied = getattr(config, "tie_word_embeddings", False)

    def parameters() -> Iterable[tuple[str, Tensor]]:
        for path in paths:
            with safe_open(path, framework="pt") as file:
                for name in file.keys():  # noqa: SIM118 (not a mapping)
                    buffer = name.endswith("rotary_emb.inv_freq")
                    if not buffer and not (tied and name == "lm_head.weight"):
                        yield name, file.get_tensor(name)

    return hash_parameters(parameters())
