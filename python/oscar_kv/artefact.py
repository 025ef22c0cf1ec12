"""Artefacts: what a calibration leaves, one safetensors file (docs/format.md, "The artefact")."""

import ctypes
import dataclasses
import json
import os
import weakref
from collections.abc import Mapping
from typing import Any, Self

import numpy as np

from oscar_kv import _library as library
from oscar_kv.errors import InvalidArgumentError

PAIRINGS = ("half_split", "interleaved")


@dataclasses.dataclass(frozen=True)
class ModelShape:
    """A decoder's attention layers."""

    num_layers: int
    num_q_heads: int
    num_kv_heads: int
    head_dim_k: int
    head_dim_v: int

    def struct(self) -> library.ModelStruct:
        return library.ModelStruct(**dataclasses.asdict(self))


@dataclasses.dataclass(frozen=True)
class Rope:
    """A rotary position embedding: pairs of channels turned by position · inv_freq.

    pairing: "half_split" pairs channel f with f + num_pairs, "interleaved" 2f with 2f + 1.
    inv_freq: [num_pairs] radians a position. magnitude: factor on the rotated channels.
    """

    inv_freq: np.ndarray
    pairing: str = "half_split"
    magnitude: float = 1.0

    def __post_init__(self) -> None:
        if self.pairing not in PAIRINGS:
            raise InvalidArgumentError(
                f"pairing is '{self.pairing}'; right: one of {', '.join(PAIRINGS)}"
            )
        inv_freq = library.rows("inv_freq", self.inv_freq, (None,), np.float32)
        object.__setattr__(self, "inv_freq", inv_freq)

    def struct(self) -> library.RopeStruct:
        return library.RopeStruct(
            PAIRINGS.index(self.pairing),
            len(self.inv_freq),
            library.pointer(self.inv_freq, library.FLOATS),
            self.magnitude,
        )


def interleave_order(num_pairs: int, head_dim: int) -> np.ndarray:
    """order[i] = the half-split channel that interleaved channel i is; the rest stay."""
    order = np.arange(head_dim)
    order[0 : 2 * num_pairs : 2] = np.arange(num_pairs)
    order[1 : 2 * num_pairs : 2] = np.arange(num_pairs) + num_pairs
    return order


class Artefact:
    """Tensors and texts of an artefact. Making one checks everything; nothing changes it after.

    tensors: name → float32 array; metadata: name → text. Probes are the library's business and are
    not among the tensors.
    """

    def __init__(self, tensors: Mapping[str, Any], metadata: Mapping[str, str]) -> None:
        arrays = {
            name: np.ascontiguousarray(tensor, np.float32) for name, tensor in tensors.items()
        }
        for name, array in arrays.items():
            if array.ndim > 4:
                raise InvalidArgumentError(f"tensor '{name}' has {array.ndim} axes; right: up to 4")
        structs = (library.TensorStruct * len(arrays))()
        for struct, (name, array) in zip(structs, arrays.items(), strict=True):
            struct.name = name.encode()
            struct.data = library.pointer(array, library.FLOATS)
            struct.rank = array.ndim
            struct.shape[: array.ndim] = array.shape
        texts = (library.TextStruct * len(metadata))(
            *(library.TextStruct(key.encode(), value.encode()) for key, value in metadata.items())
        )
        self._take(
            library.create("oscar_artefact_create", structs, len(arrays), texts, len(metadata))
        )

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Reads and checks a file; says in one line what is wrong with it."""
        return cls._from_handle(library.create("oscar_artefact_load", os.fsencode(path)))

    @classmethod
    def _from_handle(cls, handle: ctypes.c_void_p) -> Self:
        artefact = cls.__new__(cls)
        artefact._take(handle)
        return artefact

    def _take(self, handle: ctypes.c_void_p) -> None:
        self._handle = handle
        weakref.finalize(self, library.lib.oscar_artefact_free, handle)
        self.tensors: dict[str, np.ndarray] = {}
        for index in range(library.lib.oscar_artefact_num_tensors(handle)):
            tensor = library.TensorStruct()
            library.call("oscar_artefact_tensor", handle, index, ctypes.byref(tensor))
            shape = tuple(tensor.shape[: tensor.rank])
            size = int(np.prod(shape))
            view = np.ctypeslib.as_array(tensor.data, (size,)) if size else np.zeros(0, np.float32)
            array = view.reshape(shape).copy()
            array.flags.writeable = False
            self.tensors[tensor.name.decode()] = array
        self.metadata: dict[str, str] = {}
        for index in range(library.lib.oscar_artefact_num_texts(handle)):
            text = library.TextStruct()
            library.call("oscar_artefact_text", handle, index, ctypes.byref(text))
            self.metadata[text.key.decode()] = text.value.decode()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the file; it appears whole or not at all."""
        library.call("oscar_artefact_save", self._handle, os.fsencode(path))

    @property
    def method(self) -> str:
        return self.metadata["method"]

    @property
    def architecture(self) -> str:
        return json.loads(self.metadata["model"])["architecture"]

    @property
    def weights_hash(self) -> str:
        """Hash over some of the model's weights; "" where it is not known."""
        return json.loads(self.metadata["model"])["weights_hash"]

    @property
    def model(self) -> ModelShape:
        model = json.loads(self.metadata["model"])
        return ModelShape(**{f.name: model[f.name] for f in dataclasses.fields(ModelShape)})

    @property
    def layers(self) -> list[int]:
        """The model's indices of the layers."""
        return json.loads(self.metadata["layers"])

    @property
    def layer_ropes(self) -> list[int]:
        """For each layer the index of its RoPE, −1: not known."""
        return json.loads(self.metadata["layer_ropes"])

    @property
    def ropes(self) -> list[Rope]:
        return [
            Rope(self.tensors[f"ropes.{i}.inv_freq"], rope["pairing"], rope["magnitude"])
            for i, rope in enumerate(json.loads(self.metadata["ropes"]))
        ]

    @property
    def info(self) -> dict[str, str]:
        """Texts for people: calibration text, tokens, date, ..."""
        return json.loads(self.metadata["info"])

    def check_model(self, architecture: str, model: ModelShape, weights_hash: str = "") -> None:
        """Raises MismatchError naming the first difference, both values."""
        struct = model.struct()
        library.call(
            "oscar_artefact_check_model",
            self._handle,
            architecture.encode(),
            ctypes.byref(struct),
            weights_hash.encode(),
        )

    def with_info(self, info: Mapping[str, str]) -> "Artefact":
        """The same with more texts for people."""
        return Artefact(self.tensors, self.metadata | {"info": json.dumps(self.info | dict(info))})

    def with_model(self, architecture: str, weights_hash: str = "") -> "Artefact":
        """The same, said to be of another file of the same model."""
        model = json.loads(self.metadata["model"])
        model |= {"architecture": architecture, "weights_hash": weights_hash}
        return Artefact(self.tensors, self.metadata | {"model": json.dumps(model)})

    def with_pairing(self, pairing: str) -> "Artefact":
        """The artefact of the same model with its channels in the order of the other RoPE pairing.

        Hugging Face checkpoints pair channel f with f + d/2, GGUF files of the llama architecture
        2f with 2f + 1. Transforms, their inverses and mean keys are permuted; weights_hash is
        dropped, since the weights of the other file are laid out differently.
        """
        if pairing not in PAIRINGS:
            raise InvalidArgumentError(
                f"pairing is '{pairing}'; right: one of {', '.join(PAIRINGS)}"
            )
        ropes = json.loads(self.metadata["ropes"])
        tensors = dict(self.tensors)
        for layer, rope in zip(self.layers, self.layer_ropes, strict=True):
            if rope < 0:
                raise InvalidArgumentError(
                    f"layer {layer} has no known RoPE, so its channels cannot be put in order"
                )
            if ropes[rope]["pairing"] == pairing:
                continue
            order = interleave_order(len(self.ropes[rope].inv_freq), self.model.head_dim_k)
            if pairing == "half_split":
                order = np.argsort(order)
            for field in ("k_transform", "k_transform_inverse_transposed", "k_mean"):
                name = f"layers.{layer}.{field}"
                if name in tensors:  # the channels of raw keys are the second axis
                    tensors[name] = tensors[name][:, order]
        for rope in ropes:
            rope["pairing"] = pairing
        model = json.loads(self.metadata["model"]) | {"weights_hash": ""}
        return Artefact(
            tensors, self.metadata | {"ropes": json.dumps(ropes), "model": json.dumps(model)}
        )

    def __repr__(self) -> str:
        return (
            f"Artefact({self.method}, {self.architecture or 'unknown architecture'}, {self.model})"
        )


def hash_hex(data: bytes | memoryview | np.ndarray) -> str:
    """XXH3-128 as 32 hex digits: what weights_hash is made with."""
    array = np.frombuffer(data, np.uint8)
    out = ctypes.create_string_buffer(33)
    library.call("oscar_hash", array.ctypes.data, array.size, out)
    return out.value.decode()
