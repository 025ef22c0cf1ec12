"""Calibration: statistics of a model's rows, and the fit that makes an artefact of them."""

import ctypes
import dataclasses
import weakref
from typing import Any

import numpy as np

from oscar_kv import _library as library
from oscar_kv.artefact import Artefact, Rope
from oscar_kv.errors import InvalidArgumentError

METHODS = ("oscar", "oscar-plus")


@dataclasses.dataclass(frozen=True)
class HeadStatistics:
    """What was seen of one KV head, as float64. Keys are before RoPE where it is known."""

    num_queries: int
    num_tokens: int
    query_covariance: np.ndarray  # C_Q = (1/N) Σ qᵀq over the group's query heads
    output_covariance: np.ndarray  # C_S = (1/N) Σ oᵀo over the group's query heads
    key_mean: np.ndarray
    key_variance: np.ndarray  # of each channel
    value_mean: np.ndarray

    @property
    def mean_key_ratio(self) -> float:
        """Norm of the mean key over the keys' deviation from it."""
        deviation = float(np.sqrt(np.sum(self.key_variance)))
        return float(np.linalg.norm(self.key_mean)) / deviation if deviation > 0 else 0.0


class Collector:
    """Streamed statistics of one or several forward passes; memory does not grow with the text.

    For one layer tokens come in order; layers in any order. Not thread-safe.
    """

    def __init__(self, seed: int = 1) -> None:
        self._handle = library.create("oscar_collector_create", seed)
        weakref.finalize(self, library.lib.oscar_collector_free, self._handle)
        self._dims: dict[int, tuple[int, int]] = {}

    @property
    def layers(self) -> list[int]:
        """Indices of the layers that were added."""
        return sorted(self._dims)

    @property
    def num_non_finite(self) -> int:
        """Rows left out because they held NaN or Inf."""
        return library.lib.oscar_collector_num_non_finite(self._handle)

    def add(
        self,
        layer: int,
        *,
        queries: Any,
        keys: Any,
        values: Any,
        outputs: Any,
        positions: Any,
        scale: float,
        rope: Rope | None = None,
    ) -> None:
        """Rows of some tokens of one layer, queries and keys after RoPE.

        queries: [num_tokens, num_q_heads, head_dim_k]; keys: [num_tokens, num_kv_heads,
        head_dim_k]; values: [num_tokens, num_kv_heads, head_dim_v]; outputs (before W_O):
        [num_tokens, num_q_heads, head_dim_v]; positions: [num_tokens]. rope: None where it is not
        known; then the mean key is taken after RoPE, which is less exact.
        """
        queries = library.rows("queries", queries, (None, None, None), np.float32)
        num_tokens, num_q_heads, head_dim_k = queries.shape
        keys = library.rows("keys", keys, (num_tokens, None, head_dim_k), np.float32)
        num_kv_heads = keys.shape[1]
        values = library.rows("values", values, (num_tokens, num_kv_heads, None), np.float32)
        head_dim_v = values.shape[2]
        shape = (num_tokens, num_q_heads, head_dim_v)
        outputs = library.rows("outputs", outputs, shape, np.float32)
        positions = library.rows("positions", positions, (num_tokens,), np.int32)
        rope_struct = None if rope is None else rope.struct()
        struct = library.LayerRowsStruct(
            struct_bytes=ctypes.sizeof(library.LayerRowsStruct),
            layer=layer,
            num_q_heads=num_q_heads,
            num_kv_heads=num_kv_heads,
            head_dim_k=head_dim_k,
            head_dim_v=head_dim_v,
            scale=scale,
            rope=None if rope_struct is None else ctypes.pointer(rope_struct),
            num_tokens=num_tokens,
            positions=library.pointer(positions, library.INT32S),
            queries=library.pointer(queries, library.FLOATS),
            keys=library.pointer(keys, library.FLOATS),
            values=library.pointer(values, library.FLOATS),
            outputs=library.pointer(outputs, library.FLOATS),
        )
        library.call("oscar_collector_add", self._handle, ctypes.byref(struct))
        self._dims[layer] = (head_dim_k, head_dim_v)

    def head(self, layer: int, kv_head: int) -> HeadStatistics:
        struct = library.HeadStatisticsStruct()
        library.call("oscar_collector_head", self._handle, layer, kv_head, ctypes.byref(struct))
        dk, dv = self._dims[layer]
        if min(struct.num_queries, struct.num_tokens, struct.num_values) < 1:
            raise InvalidArgumentError(f"layer {layer} head {kv_head} has no rows yet; add some")

        def mean(values: Any, shape: tuple[int, ...], count: int) -> np.ndarray:
            flat = np.ctypeslib.as_array(values, (int(np.prod(shape)),))
            return flat.reshape(shape) / count

        key_mean = mean(struct.key_sum, (dk,), struct.num_tokens)
        key_square = mean(struct.key_square_sum, (dk,), struct.num_tokens)
        return HeadStatistics(
            struct.num_queries,
            struct.num_tokens,
            mean(struct.query_covariance, (dk, dk), struct.num_queries),
            mean(struct.output_covariance, (dv, dv), struct.num_queries),
            key_mean,
            np.maximum(key_square - key_mean**2, 0),
            mean(struct.value_sum, (dv,), struct.num_values),
        )

    def fit(
        self,
        method: str = "oscar-plus",
        *,
        architecture: str = "",
        weights_hash: str = "",
        num_threads: int = 1,
    ) -> Artefact:
        """The artefact. method: "oscar" or "oscar-plus"; the result does not depend on threads."""
        return Artefact._from_handle(
            library.create(
                "oscar_fit",
                self._handle,
                method.encode(),
                architecture.encode(),
                weights_hash.encode(),
                num_threads,
            )
        )
