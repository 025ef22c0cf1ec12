"""R_V absorbed into the weights: the cache then stores values without turning them.

With v' = v·R_V made by W_V and o = o'·R_V⁻¹ undone by W_O the model's answers stay, exactly up to
float32 rounding, and the encoder and attention save two matrix products a token and head.
"""

import json
from typing import Any

import numpy as np
import torch

from oscar_kv.artefact import Artefact
from oscar_kv.errors import MismatchError, UnsupportedError
from oscar_kv.transformers.model import describe


def _projections(model: Any) -> dict[int, tuple[torch.nn.Linear, torch.nn.Linear]]:
    """Layer index → (W_V, W_O), of modules that have v_proj, o_proj and layer_idx."""
    found = {}
    for name, module in model.named_modules():
        layer = getattr(module, "layer_idx", None)
        v_proj, o_proj = getattr(module, "v_proj", None), getattr(module, "o_proj", None)
        if layer is None or v_proj is None or o_proj is None:
            continue
        if getattr(module, "v_norm", None) is not None:
            raise UnsupportedError(f"{name}: values are normalised after W_V, so R_V cannot move")
        for part, linear in (("v_proj", v_proj), ("o_proj", o_proj)):
            weight = getattr(linear, "weight", None)
            kind = type(linear).__name__
            # The class itself: subclasses are how quantized weights come.
            if type(linear) is not torch.nn.Linear or weight.dtype != torch.float32:
                stored = getattr(weight, "dtype", "no weight")
                raise UnsupportedError(
                    f"{name}.{part} is {kind} of {stored}; R_V is absorbed into plain float32 "
                    "weights only (others would round what must stay exact)"
                )
        found[layer] = (v_proj, o_proj)
    return found


@torch.no_grad()
def absorb_value_rotation(model: Any, artefact: Artefact) -> Artefact:
    """Changes W_V and W_O in place; returns the artefact to use with the changed model.

    Raises UnsupportedError, with nothing changed, for quantized or 16-bit weights and for models
    without v_proj and o_proj. The codes of a token stay what they were, up to float32 rounding.
    """
    if getattr(model, "_oscar_absorbed", False):
        raise UnsupportedError("R_V is absorbed into this model already; load it anew")
    described = describe(model)
    artefact.check_model(described.architecture, described.shape, described.weights_hash)
    shape = described.shape
    projections = _projections(model)
    missing = [layer for layer in artefact.layers if layer not in projections]
    if missing:
        raise UnsupportedError(f"layers {missing} have no v_proj and o_proj to absorb R_V into")
    d, heads, groups = shape.head_dim_v, shape.num_kv_heads, shape.num_q_heads // shape.num_kv_heads
    for layer in artefact.layers:
        v_proj, o_proj = projections[layer]
        if v_proj.out_features != heads * d or o_proj.in_features != heads * groups * d:
            raise MismatchError(
                f"layer {layer}: W_V makes {v_proj.out_features} channels and W_O takes "
                f"{o_proj.in_features}; right: {heads * d} and {heads * groups * d}"
            )
    tensors = dict(artefact.tensors)
    for layer in artefact.layers:
        v_proj, o_proj = projections[layer]
        rotation = torch.from_numpy(tensors[f"layers.{layer}.v_transform"].copy()).double()
        stored = tensors.pop(f"layers.{layer}.v_inverse", None)
        inverse = rotation.transpose(1, 2) if stored is None else torch.tensor(stored).double()
        # v' = x·W_Vᵀ·R, so the rows of W_V a head holds become Rᵀ·W_V.
        weight = v_proj.weight.double().view(heads, d, -1)
        v_proj.weight.copy_((rotation.transpose(1, 2) @ weight).view_as(v_proj.weight))
        if v_proj.bias is not None:
            bias = v_proj.bias.double().view(heads, 1, d)
            v_proj.bias.copy_((bias @ rotation).view_as(v_proj.bias))
        # o·W_Oᵀ = o'·R⁻¹·W_Oᵀ, so the columns of W_O a query head reads become W_O·R⁻¹ᵀ.
        columns = o_proj.weight.double().view(-1, heads, groups, d)
        turned = torch.einsum("ohgd,hed->ohge", columns, inverse)
        o_proj.weight.copy_(turned.reshape(o_proj.weight.shape))
        tensors[f"layers.{layer}.v_transform"] = np.eye(d, dtype=np.float32)
        name = f"layers.{layer}.v_mean"
        if name in tensors:
            mean = torch.tensor(tensors[name]).double()[:, None]
            tensors[name] = (mean @ rotation)[:, 0].float().numpy()
    model._oscar_absorbed = True
    info = artefact.info | {"values": "R_V is absorbed into W_V and W_O"}
    return Artefact(tensors, artefact.metadata | {"info": json.dumps(info)})
