"""Methods and codecs: how rows become bytes, and attention over pages that the caller owns."""

import ctypes
import dataclasses
import os
import weakref
from typing import Any

import numpy as np

from oscar_kv import _library as library
from oscar_kv.artefact import PAIRINGS, ModelShape, Rope

PAGE_TOKENS = 64


@dataclasses.dataclass(frozen=True)
class Plane:
    """One side of one page of 64 tokens for one KV head; offsets in bytes (docs/format.md)."""

    head_dim: int
    bits: int
    group_size: int  # 0 at 16 bits
    has_zero_points: bool
    code_row_bytes: int
    scales_offset: int
    zeros_offset: int
    plane_bytes: int


@dataclasses.dataclass(frozen=True)
class Side:
    """How one side is coded, for encoders on other devices; arrays are float32 copies.

    transform, attend_transform: [num_kv_heads, head_dim, head_dim], None: identity; rotated row =
    (row − mean) · transform; keys: rotated query = query · attend_transform, values: output =
    rotated output · attend_transform. mean: [num_kv_heads, head_dim], of keys before `rope`, None:
    none. clip_ratio: [num_kv_heads]. scale_fit: 0 plain, 1 unbiased, 2 least squares. is_trellis:
    trellis codes, of 2 bits and without zero points.
    """

    bits: int
    group_size: int
    has_zero_points: bool
    scale_fit: int
    transform: np.ndarray | None
    attend_transform: np.ndarray | None
    mean: np.ndarray | None
    clip_ratio: np.ndarray | None
    rope: Rope | None
    is_trellis: bool = False


class Method:
    """How a model's keys and values are stored.

    kv: METHOD or FILE with options, as the command line's --kv takes them: "quarot",
    "model.oscar.safetensors:k3v2,sink=0". model: needed for a METHOD; of a FILE it is checked.
    """

    def __init__(self, kv: str | os.PathLike[str], model: ModelShape | None = None) -> None:
        struct = None if model is None else ctypes.byref(model.struct())
        self._handle = library.create("oscar_method_open", os.fsencode(kv), struct)
        weakref.finalize(self, library.lib.oscar_method_free, self._handle)
        info = library.MethodInfoStruct()
        library.call("oscar_method_describe", self._handle, ctypes.byref(info))
        self.name: str = info.name.decode()
        self.model = ModelShape(
            **{f.name: getattr(info.model, f.name) for f in dataclasses.fields(ModelShape)}
        )
        self.k_bits: int = info.k_bits
        self.v_bits: int = info.v_bits
        self.bits_per_value: float = info.bits_per_value
        self.sink_tokens: int = info.sink_tokens
        self.recent_tokens: int = info.recent_tokens

    def codec(self, layer: int, max_position: int = (1 << 17) - 1) -> "Codec":
        """The encoder of one layer, for positions 0 to max_position."""
        return Codec(self, layer, max_position)


class Codec:
    """One layer's encoder, and attention over pages that it encoded. Immutable."""

    def __init__(self, method: Method, layer: int, max_position: int) -> None:
        self.layer, self.max_position, self.model = layer, max_position, method.model
        self._handle = library.create("oscar_codec_create", method._handle, layer, max_position)
        weakref.finalize(self, library.lib.oscar_codec_free, self._handle)
        self.key_bytes: int = library.lib.oscar_codec_key_bytes(self._handle)
        self.value_bytes: int = library.lib.oscar_codec_value_bytes(self._handle)
        self.page_bytes: int = library.lib.oscar_codec_page_bytes(self._handle)
        self.key_plane = self._plane("oscar_codec_key_plane")
        self.value_plane = self._plane("oscar_codec_value_plane")

    def _plane(self, function: str) -> Plane:
        struct = library.PlaneStruct()
        library.call(function, self._handle, ctypes.byref(struct))
        values = {f.name: getattr(struct, f.name) for f in dataclasses.fields(Plane)}
        return Plane(**(values | {"has_zero_points": bool(struct.has_zero_points)}))

    def key_side(self) -> Side:
        return self._side("oscar_codec_key_side", self.model.head_dim_k)

    def value_side(self) -> Side:
        return self._side("oscar_codec_value_side", self.model.head_dim_v)

    def _side(self, function: str, head_dim: int) -> Side:
        struct, heads = library.CodecSideStruct(), self.model.num_kv_heads
        library.call(function, self._handle, ctypes.byref(struct))

        def array(data: Any, *shape: int) -> np.ndarray | None:
            return np.ctypeslib.as_array(data, shape).copy() if data else None

        rope = None
        if struct.num_pairs:
            inv_freq = array(struct.inv_freq, struct.num_pairs)
            rope = Rope(inv_freq, PAIRINGS[struct.pairing], struct.magnitude)
        return Side(
            struct.bits,
            struct.group_size,
            bool(struct.has_zero_points),
            struct.scale_fit,
            array(struct.transform, heads, head_dim, head_dim),
            array(struct.attend_transform, heads, head_dim, head_dim),
            array(struct.mean, heads, head_dim),
            array(struct.clip_ratio, heads),
            rope,
            bool(struct.is_trellis),
        )

    def _keys(self, keys: Any) -> np.ndarray:
        shape = (None, self.model.num_kv_heads, self.model.head_dim_k)
        return library.rows("keys", keys, shape, np.float32)

    def _values(self, values: Any, num_tokens: int | None = None) -> np.ndarray:
        shape = (num_tokens, self.model.num_kv_heads, self.model.head_dim_v)
        return library.rows("values", values, shape, np.float32)

    def encode_keys(self, keys: Any, positions: Any) -> np.ndarray:
        """keys: [num_tokens, num_kv_heads, head_dim_k]; returns uint8 [num_tokens, key_bytes]."""
        keys = self._keys(keys)
        positions = library.rows("positions", positions, (len(keys),), np.int32)
        out = np.empty((len(keys), self.key_bytes), np.uint8)
        library.call(
            "oscar_encode_keys",
            self._handle,
            library.pointer(keys, library.FLOATS),
            library.pointer(positions, library.INT32S),
            len(keys),
            library.pointer(out, library.UINT8S),
        )
        return out

    def encode_values(self, values: Any) -> np.ndarray:
        """values: [num_tokens, num_kv_heads, head_dim_v]. Gives uint8 [num_tokens, value_bytes]."""
        values = self._values(values)
        out = np.empty((len(values), self.value_bytes), np.uint8)
        library.call(
            "oscar_encode_values",
            self._handle,
            library.pointer(values, library.FLOATS),
            len(values),
            library.pointer(out, library.UINT8S),
        )
        return out

    def decode_keys(self, data: Any, positions: Any) -> np.ndarray:
        """What codes stand for: float32 [num_tokens, num_kv_heads, head_dim_k], mean included."""
        data = library.rows("bytes", data, (None, self.key_bytes), np.uint8)
        positions = library.rows("positions", positions, (len(data),), np.int32)
        out = np.empty((len(data), self.model.num_kv_heads, self.model.head_dim_k), np.float32)
        library.call(
            "oscar_decode_keys",
            self._handle,
            library.pointer(data, library.UINT8S),
            library.pointer(positions, library.INT32S),
            len(data),
            library.pointer(out, library.FLOATS),
        )
        return out

    def decode_values(self, data: Any) -> np.ndarray:
        """What codes stand for: float32 [num_tokens, num_kv_heads, head_dim_v], mean included."""
        data = library.rows("bytes", data, (None, self.value_bytes), np.uint8)
        out = np.empty((len(data), self.model.num_kv_heads, self.model.head_dim_v), np.float32)
        library.call(
            "oscar_decode_values",
            self._handle,
            library.pointer(data, library.UINT8S),
            len(data),
            library.pointer(out, library.FLOATS),
        )
        return out

    def encode_pages(
        self,
        keys: Any,
        values: Any,
        positions: Any,
        slots: Any,
        pages: np.ndarray,
        num_threads: int = 1,
    ) -> None:
        """Writes tokens into pages, in place.

        slots: [num_tokens] 64 · page + offset, −1: skipped; no two the same. pages: uint8
        [num_pages, page_bytes], C-contiguous.
        """
        keys = self._keys(keys)
        values = self._values(values, len(keys))
        positions = library.rows("positions", positions, (len(keys),), np.int32)
        slots = library.rows("slots", slots, (len(keys),), np.int64)
        pages = self._pages(pages)
        library.call(
            "oscar_encode_pages",
            self._handle,
            library.pointer(keys, library.FLOATS),
            library.pointer(values, library.FLOATS),
            library.pointer(positions, library.INT32S),
            library.pointer(slots, library.INT64S),
            len(keys),
            num_threads,
            library.pointer(pages, library.UINT8S),
            len(pages),
        )

    def _pages(self, pages: np.ndarray) -> np.ndarray:
        checked = library.rows("pages", pages, (None, self.page_bytes), np.uint8)
        if checked is not pages and checked.ctypes.data != pages.ctypes.data:
            raise library.InvalidArgumentError(
                f"pages are {pages.dtype}, contiguous: {pages.flags.c_contiguous}; "
                "right: C-contiguous uint8"
            )
        return checked

    def attend_pages(
        self,
        q: Any,
        query_positions: Any,
        pages: np.ndarray,
        block_table: Any,
        num_tokens: int,
        *,
        scale: float,
        soft_cap: float = 0.0,
        sliding_window: int = 0,
        sinks: Any = None,
        copies: tuple[Any, Any, Any] | None = None,
        sink_tokens: int = 0,
        recent_tokens: int = 0,
        num_threads: int = 1,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Causal attention of one sequence's queries over its pages: softmax(q·k·scale)·v.

        q: [num_queries, num_q_heads, head_dim_k]; query_positions: [num_queries]; block_table:
        [⌈num_tokens/64⌉]. copies: (rows [num_tokens], −1: none; keys and values as BF16 bits,
        uint16 [num_copies, num_kv_heads, head_dim]), used below sink_tokens and for the
        recent_tokens up to the query. Returns (out [num_queries, num_q_heads, head_dim_v], lse
        [num_queries, num_q_heads], natural log).
        """
        q = library.rows("q", q, (None, None, self.model.head_dim_k), np.float32)
        num_queries, num_q_heads = q.shape[:2]
        positions = library.rows("query_positions", query_positions, (num_queries,), np.int32)
        pages = self._pages(pages)
        used = -(-num_tokens // PAGE_TOKENS)
        table = library.rows("block_table", block_table, (used,), np.int32)
        if sinks is not None:
            sinks = library.rows("sinks", sinks, (num_q_heads,), np.float32)
        copy_rows = k_copies = v_copies = None
        if copies is not None:
            copy_rows = library.rows("copies[0]", copies[0], (num_tokens,), np.int32)
            heads = self.model.num_kv_heads
            shape = (None, heads, self.model.head_dim_k)
            k_copies = library.rows("copies[1]", copies[1], shape, np.uint16)
            shape = (len(k_copies), heads, self.model.head_dim_v)
            v_copies = library.rows("copies[2]", copies[2], shape, np.uint16)
        out = np.empty((num_queries, num_q_heads, self.model.head_dim_v), np.float32)
        lse = np.empty((num_queries, num_q_heads), np.float32)
        struct = library.PageQueriesStruct(
            struct_bytes=ctypes.sizeof(library.PageQueriesStruct),
            q=library.pointer(q, library.FLOATS),
            out=library.pointer(out, library.FLOATS),
            lse=library.pointer(lse, library.FLOATS),
            query_positions=library.pointer(positions, library.INT32S),
            num_queries=num_queries,
            num_q_heads=num_q_heads,
            num_threads=num_threads,
            pages=library.pointer(pages, library.UINT8S),
            num_pages=len(pages),
            block_table=library.pointer(table, library.INT32S),
            num_tokens=num_tokens,
            copy_rows=library.pointer(copy_rows, library.INT32S),
            k_copies=library.pointer(k_copies, library.UINT16S),
            v_copies=library.pointer(v_copies, library.UINT16S),
            num_copies=0 if k_copies is None else len(k_copies),
            sink_tokens=sink_tokens,
            recent_tokens=recent_tokens,
            scale=scale,
            soft_cap=soft_cap,
            sliding_window=sliding_window,
            sinks=library.pointer(sinks, library.FLOATS),
        )
        library.call("oscar_attend_pages", self._handle, ctypes.byref(struct))
        return out, lse
