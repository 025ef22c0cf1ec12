"""Import of public rotation files: `k_rotation….pt` and `v_rotation….pt` of the paper's authors.

A file is a torch.save dict with `layers`: layer index → {"rotation": R, ...}, where row · R is the
rotated row. Format 1 has one R [head_dim, head_dim] for all KV heads of a layer; format 2 one a
head, either stacked [num_kv_heads, head_dim, head_dim] or as `heads`: head index → {"rotation": R}.
"""

import json
import os
from typing import Any

import numpy as np

from oscar_kv.artefact import Artefact, ModelShape
from oscar_kv.errors import CorruptError, InvalidArgumentError, MismatchError, NotFoundError

FORMATS = (1, 2)
# What the authors' scripts set for most models.
DEFAULT_K_CLIP, DEFAULT_V_CLIP = 0.96, 0.92


def _load(path: str | os.PathLike[str]) -> dict[str, Any]:
    import torch

    if not os.path.isfile(path):
        raise NotFoundError(f"{path}: no such file")
    try:
        loaded = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise CorruptError(
            f"{path}: not a file of torch.save with plain tensors ({first})"
        ) from None
    if not isinstance(loaded, dict) or not isinstance(loaded.get("layers"), dict):
        raise CorruptError(f"{path}: it has no 'layers'; right: a dict of rotations by layer")
    version = loaded.get("format_version", 1)
    if version not in FORMATS:
        raise MismatchError(f"{path}: format_version is {version!r}; this reads 1 and 2")
    return loaded


def _matrix(value: Any, where: str) -> np.ndarray:
    if not hasattr(value, "detach"):
        raise CorruptError(f"{where}: rotation is {type(value).__name__}; right: a tensor")
    return value.detach().float().numpy()


def _layer_rotation(layer: Any, num_kv_heads: int, where: str) -> np.ndarray:
    """[d, d] for all heads, or [num_kv_heads, d, d]."""
    if not isinstance(layer, dict):
        raise CorruptError(f"{where} is {type(layer).__name__}; right: a dict with 'rotation'")
    if isinstance(layer.get("heads"), dict):
        heads = {int(head): entry for head, entry in layer["heads"].items()}
        if sorted(heads) != list(range(num_kv_heads)):
            raise MismatchError(
                f"{where} has rotations of heads {sorted(heads)}; this model has "
                f"{num_kv_heads} KV heads"
            )
        rotations = []
        for head in range(num_kv_heads):
            entry = heads[head]
            rotation = entry.get("rotation") if isinstance(entry, dict) else entry
            rotations.append(_matrix(rotation, f"{where} head {head}"))
        return np.stack(rotations)
    return _matrix(layer.get("rotation"), where)


def read_rotations(
    path: str | os.PathLike[str], num_kv_heads: int, head_dim: int
) -> dict[int, np.ndarray]:
    """Layer index → R, [head_dim, head_dim] or [num_kv_heads, head_dim, head_dim]."""
    rotations = {}
    for key, layer in _load(path)["layers"].items():
        index = int(key)
        where = f"{path}: layer {index}"
        rotation = _layer_rotation(layer, num_kv_heads, where)
        legal = ((head_dim, head_dim), (num_kv_heads, head_dim, head_dim))
        if rotation.shape not in legal:
            raise MismatchError(
                f"{where}: rotation has shape {list(rotation.shape)}; right for this model: "
                f"{list(legal[0])} or {list(legal[1])}"
            )
        rotations[index] = rotation
    if not rotations:
        raise CorruptError(f"{path}: 'layers' is empty")
    return dict(sorted(rotations.items()))


def import_rotations(
    k_path: str | os.PathLike[str],
    v_path: str | os.PathLike[str],
    model: ModelShape,
    *,
    architecture: str = "",
    weights_hash: str = "",
    k_clip: float = DEFAULT_K_CLIP,
    v_clip: float = DEFAULT_V_CLIP,
    group_size: int = 128,
) -> Artefact:
    """An `oscar` artefact with the authors' rotations and hand-set clip ratios.

    Codes are affine with plain scales, as in the paper. The files hold no means, spectra or errors;
    `errors` is zero, which `info` says.
    """
    keys = read_rotations(k_path, model.num_kv_heads, model.head_dim_k)
    values = read_rotations(v_path, model.num_kv_heads, model.head_dim_v)
    if list(keys) != list(values):
        raise MismatchError(
            f"{k_path} has layers {list(keys)}, {v_path} has {list(values)}; they must be the same"
        )
    if len(keys) != model.num_layers:
        raise MismatchError(
            f"{k_path} has {len(keys)} layers; this model has {model.num_layers} with a KV cache"
        )
    for name, ratio in (("k_clip", k_clip), ("v_clip", v_clip)):
        if not 0 < ratio <= 1:
            raise InvalidArgumentError(f"{name} is {ratio}; right: above 0, at most 1")
    tensors: dict[str, np.ndarray] = {"errors": np.zeros((len(keys), 2), np.float32)}
    for layer in keys:
        tensors[f"layers.{layer}.k_transform"] = keys[layer]
        tensors[f"layers.{layer}.v_transform"] = values[layer]
        for bits in (2, 3, 4):
            heads = np.ones(model.num_kv_heads, np.float32)
            tensors[f"layers.{layer}.k_clip.{bits}"] = heads * np.float32(k_clip)
            tensors[f"layers.{layer}.v_clip.{bits}"] = heads * np.float32(v_clip)
    quant = {"bits": 2, "group_size": group_size, "codebook": "affine", "scale_fit": "plain"}
    shape = {
        "architecture": architecture,
        "num_layers": model.num_layers,
        "num_q_heads": model.num_q_heads,
        "num_kv_heads": model.num_kv_heads,
        "head_dim_k": model.head_dim_k,
        "head_dim_v": model.head_dim_v,
        "weights_hash": weights_hash,
    }
    info = {
        "imported_keys": os.path.basename(k_path),
        "imported_values": os.path.basename(v_path),
        "errors": "not measured",
    }
    return Artefact(
        tensors,
        {
            "format": "oscar-artefact",
            "format_version": "1",
            "basis": "after_rope",
            "convention": "rotated = raw * R",
            "method": "oscar",
            "model": json.dumps(shape),
            "k_quant": json.dumps(quant),
            "v_quant": json.dumps(quant),
            "hadamard": "true",
            "key_smoothing": "false",
            "ropes": "[]",
            "layers": json.dumps(list(keys)),
            "layer_ropes": json.dumps([-1] * len(keys)),
            "info": json.dumps(info),
        },
    )
