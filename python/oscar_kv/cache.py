"""The library's own paged cache: pages, sequences, exact windows."""

import ctypes
import weakref
from typing import Any

import numpy as np

from oscar_kv import _library as library
from oscar_kv.codec import Method


class Cache:
    """Pages of a model for several sequences. All memory is reserved here. Not thread-safe.

    For every step: begin_append once, then append_layer and attend for every layer.
    """

    def __init__(
        self,
        method: Method,
        *,
        num_pages: int = 64,
        max_sequences: int = 1,
        sink_tokens: int | None = None,
        recent_tokens: int | None = None,
        max_append_tokens: int = 512,
        max_position: int = 1 << 20,
        num_threads: int = 1,
    ) -> None:
        options = library.CacheOptionsStruct()
        library.call("oscar_cache_options_init", method._handle, ctypes.byref(options))
        options.num_pages = num_pages
        options.max_sequences = max_sequences
        if sink_tokens is not None:
            options.sink_tokens = sink_tokens
        if recent_tokens is not None:
            options.recent_tokens = recent_tokens
        options.max_append_tokens = max_append_tokens
        options.max_position = max_position
        options.num_threads = num_threads
        self.model = method.model
        self.max_append_tokens = max_append_tokens
        self.sink_tokens: int = options.sink_tokens
        self.recent_tokens: int = options.recent_tokens
        self._handle = library.create("oscar_cache_create", method._handle, ctypes.byref(options))
        weakref.finalize(self, library.lib.oscar_cache_free, self._handle)

    @property
    def num_bytes(self) -> int:
        """Bytes reserved: pages, exact copies, tables."""
        return library.lib.oscar_cache_bytes(self._handle)

    @property
    def num_free_pages(self) -> int:
        return library.lib.oscar_cache_num_free_pages(self._handle)

    def create_sequence(self) -> int:
        sequence = ctypes.c_int32()
        library.call("oscar_sequence_create", self._handle, ctypes.byref(sequence))
        return sequence.value

    def fork(self, sequence: int) -> int:
        """A sequence with the same tokens; pages are shared until one of the two writes."""
        fork = ctypes.c_int32()
        library.call("oscar_sequence_fork", self._handle, sequence, ctypes.byref(fork))
        return fork.value

    def free_sequence(self, sequence: int) -> None:
        library.call("oscar_sequence_free", self._handle, sequence)

    def truncate(self, sequence: int, num_tokens: int) -> None:
        """Keeps the first num_tokens tokens."""
        library.call("oscar_sequence_truncate", self._handle, sequence, num_tokens)

    def num_tokens(self, sequence: int) -> int:
        count = ctypes.c_int64()
        library.call("oscar_sequence_num_tokens", self._handle, sequence, ctypes.byref(count))
        return count.value

    def begin_append(self, sequence: int, num_tokens: int) -> None:
        """Reserves room; every layer must then get its rows. Raises OutOfPagesError."""
        library.call("oscar_append_begin", self._handle, sequence, num_tokens)

    def append_layer(
        self, sequence: int, layer: int, keys: Any, values: Any, num_tokens: int
    ) -> None:
        """keys: [num_tokens, num_kv_heads, head_dim_k], values alike, of the tokens reserved."""
        model = self.model
        shape = (num_tokens, model.num_kv_heads, model.head_dim_k)
        keys = library.rows("keys", keys, shape, np.float32)
        shape = (num_tokens, model.num_kv_heads, model.head_dim_v)
        values = library.rows("values", values, shape, np.float32)
        library.call(
            "oscar_append_layer",
            self._handle,
            sequence,
            layer,
            library.pointer(keys, library.FLOATS),
            library.pointer(values, library.FLOATS),
        )

    def append(self, sequence: int, keys: Any, values: Any) -> None:
        """All layers at once: keys [num_layers, num_tokens, num_kv_heads, head_dim_k]."""
        num_tokens = np.shape(keys)[1]
        self.begin_append(sequence, num_tokens)
        for layer in range(self.model.num_layers):
            self.append_layer(sequence, layer, keys[layer], values[layer], num_tokens)

    def attend(
        self,
        sequence: int,
        layer: int,
        q: Any,
        *,
        scale: float,
        soft_cap: float = 0.0,
        sliding_window: int = 0,
        sinks: Any = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Causal attention of the sequence's last tokens over all of it.

        q: [num_queries, num_q_heads, head_dim_k]. Returns (out [num_queries, num_q_heads,
        head_dim_v], lse [num_queries, num_q_heads], natural log).
        """
        model = self.model
        q = library.rows("q", q, (None, model.num_q_heads, model.head_dim_k), np.float32)
        if sinks is not None:
            sinks = library.rows("sinks", sinks, (model.num_q_heads,), np.float32)
        out = np.empty((len(q), model.num_q_heads, model.head_dim_v), np.float32)
        lse = np.empty((len(q), model.num_q_heads), np.float32)
        struct = library.QueriesStruct(
            struct_bytes=ctypes.sizeof(library.QueriesStruct),
            q=library.pointer(q, library.FLOATS),
            out=library.pointer(out, library.FLOATS),
            num_queries=len(q),
            scale=scale,
            soft_cap=soft_cap,
            sliding_window=sliding_window,
            sinks=library.pointer(sinks, library.FLOATS),
            lse=library.pointer(lse, library.FLOATS),
        )
        library.call("oscar_attend", self._handle, sequence, layer, ctypes.byref(struct))
        return out, lse

    def token_bytes(self, sequence: int, layer: int, token: int, num_bytes: int) -> np.ndarray:
        """Stored bytes of one token in one layer: key_bytes + value_bytes of its codec."""
        out = np.empty(num_bytes, np.uint8)
        library.call(
            "oscar_token_bytes",
            self._handle,
            sequence,
            layer,
            token,
            library.pointer(out, library.UINT8S),
            num_bytes,
        )
        return out
