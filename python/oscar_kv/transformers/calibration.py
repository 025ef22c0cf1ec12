"""Calibration of a Hugging Face model: texts through the model, statistics, an artefact."""

import datetime
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

import oscar_kv
from oscar_kv.artefact import Artefact, Rope, hash_hex
from oscar_kv.calibration import METHODS, Collector
from oscar_kv.errors import CorruptError, InvalidArgumentError, IoError, NotFoundError
from oscar_kv.transformers.capture import capturing
from oscar_kv.transformers.model import (
    describe,
    load_model,
    load_tokenizer,
    require_folder,
    text_config,
)
from oscar_kv.transformers.rope import layer_ropes

MIN_TOKENS = 512  # below this the covariances of a large head are too noisy to rotate by
MAX_STRETCH = 8192  # tokens of one forward pass
LARGE_MEAN_KEY = 8.0  # a layer is named where its mean key is this many deviations long


def share_tokens(available: Sequence[int], wanted: int) -> list[int]:
    """Tokens that each text gives: an even share; what a short one leaves goes to others."""
    shares = [0] * len(available)
    order = sorted(range(len(available)), key=lambda text: available[text])
    for done, text in enumerate(order):
        shares[text] = min(available[text], wanted // (len(order) - done))
        wanted -= shares[text]
    return shares


def collect(model: Any, tokens: Sequence[int], seed: int = 1) -> tuple[Collector, list[str]]:
    """Statistics of the model on the tokens, and warnings. The model's weights stay as they are."""
    config = text_config(model)
    ropes = layer_ropes(model)
    collector = Collector(seed)
    positions = np.zeros(0, np.int32)

    def receive(
        layer: int, queries: Tensor, keys: Tensor, values: Tensor, outputs: Tensor, scale: float
    ) -> None:
        collector.add(
            layer,
            queries=queries.cpu().numpy(),
            keys=keys.cpu().numpy(),
            values=values.cpu().numpy(),
            outputs=outputs.cpu().numpy(),
            positions=positions,
            scale=scale,
            rope=ropes[layer],
        )

    stretch = min(MAX_STRETCH, getattr(config, "max_position_embeddings", None) or MAX_STRETCH)
    ids = torch.tensor(list(tokens), dtype=torch.long, device=model.device)
    for begin in range(0, len(ids), stretch):
        part = ids[begin : begin + stretch][None]
        positions = np.arange(part.shape[1], dtype=np.int32)
        with capturing(model, receive):
            model(part, use_cache=False, logits_to_keep=1)
    if collector.num_non_finite:
        raise CorruptError(
            f"{collector.num_non_finite} rows of keys, values or queries held NaN or Inf; "
            "the weights are broken, or their type is too narrow"
        )
    return collector, _warnings(collector, ropes)


def _warnings(collector: Collector, ropes: dict[int, Rope | None]) -> list[str]:
    warnings = []
    unknown = [layer for layer in collector.layers if ropes[layer] is None]
    if unknown:
        warnings.append(
            f"layers {unknown}: no RoPE was recognised; their mean key is static, which is exact "
            "only where keys have no positions"
        )
    return warnings


def _large_means(collector: Collector, num_kv_heads: int, method: str) -> list[str]:
    advice = (
        "oscar-plus keeps it apart, other methods lose these keys below 16 bits (:k16v2)"
        if method == "oscar-plus"
        else f"{method} keeps it in the codes, so expect poor answers; use oscar-plus"
    )
    lines = []
    for layer in collector.layers:
        ratio = max(collector.head(layer, head).mean_key_ratio for head in range(num_kv_heads))
        if ratio >= LARGE_MEAN_KEY:
            lines.append(
                f"layer {layer}: the mean key is {ratio:.1f} times the keys' deviation from it; "
                f"{advice}"
            )
    return lines


def calibrate(
    model: Any,
    tokens: Sequence[int],
    *,
    method: str = "oscar-plus",
    num_threads: int = 1,
    seed: int = 1,
    info: dict[str, str] | None = None,
) -> tuple[Artefact, list[str]]:
    """An artefact of the model fitted to the tokens, and warnings of one line each.

    method: "oscar" or "oscar-plus". Raises OscarError in one line for models without ordinary
    attention and for too few tokens.
    """
    if method not in METHODS:
        raise InvalidArgumentError(f"method is '{method}'; right: one of {', '.join(METHODS)}")
    if len(tokens) < MIN_TOKENS:
        raise InvalidArgumentError(f"{len(tokens)} tokens; calibration needs at least {MIN_TOKENS}")
    described = describe(model)
    collector, warnings = collect(model, tokens, seed)
    warnings += _large_means(collector, described.shape.num_kv_heads, method)
    artefact = collector.fit(
        method,
        architecture=described.architecture,
        weights_hash=described.weights_hash,
        num_threads=num_threads,
    )
    import transformers

    texts = {
        "tokens_used": str(len(tokens)),
        "seed": str(seed),
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "transformers": transformers.__version__,
        "oscar_kv": oscar_kv.__version__,
    }
    texts |= {f"warning.{i + 1}": warning for i, warning in enumerate(warnings)}
    return artefact.with_info(texts | (info or {})), warnings


def _read_text(path: str | os.PathLike[str]) -> str:
    if not os.path.isfile(path):
        raise NotFoundError(f"{path}: no such file; right: a UTF-8 text")
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except UnicodeDecodeError as error:
        raise CorruptError(f"{path}: byte {error.start} is not UTF-8") from None
    except OSError as error:
        raise IoError(f"{path}: {error.strerror}") from None


def calibrate_folder(
    folder: str | os.PathLike[str],
    texts: Sequence[str | os.PathLike[str]],
    *,
    method: str = "oscar-plus",
    num_tokens: int = 8192,
    num_threads: int = 1,
    seed: int = 1,
    dtype: str = "float32",
    progress: Callable[[str], None] = lambda text: None,
) -> tuple[Artefact, list[str]]:
    """What `oscar-kv calibrate` does: a model folder and text files to an artefact and warnings."""
    require_folder(folder)
    contents = [_read_text(path) for path in texts]
    tokenizer = load_tokenizer(folder)
    # A large file is not tokenized to its end; tokens of text have about four characters.
    encoded = [
        tokenizer(text[: 64 * num_tokens], truncation=False, verbose=False)["input_ids"]
        for text in contents
    ]
    shares = share_tokens([len(ids) for ids in encoded], num_tokens)
    tokens = [id for ids, share in zip(encoded, shares, strict=True) for id in ids[:share]]
    if len(tokens) < MIN_TOKENS:
        counts = ", ".join(
            f"{path}: has {len(ids)} tokens" for path, ids in zip(texts, encoded, strict=True)
        )
        raise InvalidArgumentError(f"{counts}; calibration needs at least {MIN_TOKENS}")
    torch.set_num_threads(num_threads)
    progress(f"loading {folder}")
    model = load_model(folder, dtype)
    progress(f"{len(tokens)} tokens through the model, then fitting its layers")
    info = {
        "text_files": ", ".join(os.path.basename(path) for path in texts),
        "text_hash": hash_hex("".join(contents).encode()),
        "tokens_asked": str(num_tokens),
        "model_folder": os.path.basename(os.path.normpath(folder)),
    }
    return calibrate(model, tokens, method=method, num_threads=num_threads, seed=seed, info=info)
