"""The method that a served model's cache uses: from an artefact, or data-free."""

import dataclasses
import json
import os
import tempfile

import numpy as np

from oscar_kv.artefact import Artefact, ModelShape
from oscar_kv.codec import PAGE_TOKENS, Codec, Method
from oscar_kv.errors import MismatchError, NotFoundError, UnsupportedError
from oscar_kv.serving.mean_pairs import limit_mean

DATA_FREE = "quarot"
# Fields that hold a matrix; one [d, d] stands for every head.
_MATRIX_FIELDS = ("transform", "inverse", "inverse_transposed")
DATA_FREE_WARNING = (
    "no artefact is given, so the cache uses a data-free Hadamard rotation (quarot): on the models "
    "measured its KL divergence is 15 to 800 times that of an artefact made for the model, and "
    "answers go wrong; make one with `oscar-kv calibrate MODEL_DIR --text F -o A.safetensors`"
)


@dataclasses.dataclass(frozen=True)
class ServedMethod:
    """What one rank of an engine stores. shape: of this rank. layers: the artefact's layers.

    token_head_bytes: of one token and KV head, keys and values, the same in every layer.
    """

    kv: str
    method: Method
    shape: ModelShape
    artefact: Artefact | None
    warnings: tuple[str, ...]
    token_head_bytes: int

    def codec(self, layer: int, max_position: int) -> Codec:
        return self.method.codec(layer, max_position)

    def __str__(self) -> str:
        return (
            f"{self.kv}: {self.method.name} k{self.method.k_bits}v{self.method.v_bits}, "
            f"{self.method.bits_per_value:.3f} bits a value, {self.token_head_bytes} bytes a token "
            "and KV head"
        )


def heads_of_rank(num_heads: int, rank: int, ranks: int) -> slice:
    """KV heads of one of `ranks` tensor-parallel ranks; heads are replicated when there are fewer.

    Raises UnsupportedError where neither number divides the other.
    """
    if num_heads % ranks and ranks % num_heads:
        raise UnsupportedError(
            f"tensor parallel size is {ranks} for {num_heads} KV heads; right: one divides the "
            "other"
        )
    count = max(1, num_heads // ranks)
    first = rank * num_heads // ranks
    return slice(first, first + count)


def slice_artefact(artefact: Artefact, heads: slice, num_q_heads: int) -> Artefact:
    """The artefact of some of the KV heads, as a rank of a tensor-parallel engine needs it."""
    model = json.loads(artefact.metadata["model"])

    def of_heads(name: str, tensor: np.ndarray) -> np.ndarray:
        field = name.rpartition(".")[2]
        for_all_heads = tensor.ndim == 2 and field.endswith(_MATRIX_FIELDS)
        return tensor[heads] if name.startswith("layers.") and not for_all_heads else tensor

    tensors = {name: of_heads(name, tensor) for name, tensor in artefact.tensors.items()}
    model |= {"num_kv_heads": heads.stop - heads.start, "num_q_heads": num_q_heads}
    return Artefact(tensors, artefact.metadata | {"model": json.dumps(model)})


def split_kv(kv: str) -> tuple[str | None, str]:
    """An artefact's path, or None for a method's name, and the options."""
    if os.path.isfile(kv):
        return kv, ""
    name, _, options = kv.rpartition(":")
    if name and os.path.isfile(name):
        return name, options
    head = name or options
    if os.sep in head or head.endswith(".safetensors"):
        path = kv if kv.endswith(".safetensors") else head
        raise NotFoundError(f"{path}: no such file; right: an artefact that `calibrate` wrote")
    return None, options if name else ""


def open_method(
    kv: str | None,
    architecture: str,
    shape: ModelShape,
    *,
    weights_hash: str = "",
    rank: int = 0,
    ranks: int = 1,
    strict: bool = False,
    rope_pairing: str | None = None,
    most_mean_pairs: int | None = None,
) -> ServedMethod:
    """Opens what `kv` names for one rank of a model of this shape.

    kv: FILE or METHOD with options, as the command line's --kv; None or "": data-free, with a
    warning, or refused when strict. shape: the whole model's. rope_pairing: of the engine, where it
    is known. most_mean_pairs: of the keys' mean, that attention puts back; None: all.
    """
    warnings = []
    if not kv:
        if strict:
            raise NotFoundError(
                "no artefact is given and strict is set; right: the file that `oscar-kv calibrate` "
                "wrote for this model"
            )
        kv = DATA_FREE
        warnings.append(DATA_FREE_WARNING)
    heads = heads_of_rank(shape.num_kv_heads, rank, ranks)
    if shape.num_q_heads % ranks:
        raise UnsupportedError(
            f"tensor parallel size is {ranks} for {shape.num_q_heads} query heads; right: a divisor"
        )
    local = dataclasses.replace(
        shape,
        num_kv_heads=heads.stop - heads.start,
        num_q_heads=shape.num_q_heads // ranks,
    )
    path, options = split_kv(kv)
    artefact = None
    if path is None:
        method = Method(kv, local)
    else:
        artefact = Artefact.load(path)
        artefact.check_model(architecture, shape, weights_hash)
        if not (artefact.weights_hash and weights_hash):
            warnings.append(
                f"{path}: shape and architecture are this model's; whether the weights are is not "
                "known (the artefact or the model has no hash of them)"
            )
            _check_pairing(path, artefact, rope_pairing)
        served = artefact
        if most_mean_pairs is not None:
            served, kept = limit_mean(artefact, most_mean_pairs)
            if kept < 1.0:
                warnings.append(
                    f"{path}: mean_pairs {most_mean_pairs} keeps {kept:.4%} of a layer's key mean "
                    "apart; the rest is coded with the keys, which costs quality"
                )
        if ranks > 1:
            served = slice_artefact(served, heads, local.num_q_heads)
        method = Method(kv, local) if served is artefact else _method_of(served, options)
    return ServedMethod(kv, method, local, artefact, tuple(warnings), _token_head_bytes(kv, method))


def _check_pairing(path: str, artefact: Artefact, pairing: str | None) -> None:
    for rope in artefact.ropes if pairing else []:
        if rope.pairing != pairing:
            raise MismatchError(
                f"{path}: pairs RoPE channels {rope.pairing}, this model {pairing}; use oscar-kv "
                f"convert --pairing {pairing}"
            )


def _method_of(artefact: Artefact, options: str) -> Method:
    with tempfile.TemporaryDirectory(prefix="oscar-kv-") as folder:
        path = os.path.join(folder, "served.oscar.safetensors")
        artefact.save(path)
        return Method(f"{path}:{options}" if options else path, artefact.model)


def _token_head_bytes(kv: str, method: Method) -> int:
    """Bytes of a token and KV head; engines' pages are the same size in every layer."""
    sizes = {}
    for layer in range(method.model.num_layers):
        codec = method.codec(layer, 0)
        run = codec.key_plane.plane_bytes + codec.value_plane.plane_bytes
        sizes.setdefault(run, layer)
    if len(sizes) > 1:
        (one, first), (other, second) = list(sizes.items())[:2]
        raise UnsupportedError(
            f"{kv}: a page and head takes {one} bytes in layer {first} and {other} in layer "
            f"{second}; engines' pages are of one size, so the same bits in every layer"
        )
    run = next(iter(sizes))
    if run % PAGE_TOKENS:
        raise UnsupportedError(f"{kv}: {run} bytes a page and head are no multiple of 64")
    return run // PAGE_TOKENS
