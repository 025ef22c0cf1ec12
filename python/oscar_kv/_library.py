"""liboscar through ctypes: structs and signatures of include/oscar/oscar.h, and calls that raise.

ctypes and not a compiled module: the C interface is the contract that other languages have too, and
one wheel serves every Python.
"""

import ctypes
import os
import pathlib
from ctypes import (
    POINTER,
    Structure,
    c_char,
    c_char_p,
    c_double,
    c_float,
    c_int32,
    c_int64,
    c_size_t,
    c_uint8,
    c_uint16,
    c_uint64,
    c_void_p,
)
from typing import Any, ClassVar

import numpy as np

from oscar_kv.errors import BY_STATUS, InternalError, InvalidArgumentError

ABI_VERSION = 1

FLOATS = POINTER(c_float)
DOUBLES = POINTER(c_double)
INT32S = POINTER(c_int32)
INT64S = POINTER(c_int64)
UINT8S = POINTER(c_uint8)
UINT16S = POINTER(c_uint16)


class ModelStruct(Structure):
    _fields_: ClassVar = [
        ("num_layers", c_int32),
        ("num_q_heads", c_int32),
        ("num_kv_heads", c_int32),
        ("head_dim_k", c_int32),
        ("head_dim_v", c_int32),
    ]


class MethodInfoStruct(Structure):
    _fields_: ClassVar = [
        ("name", c_char * 32),
        ("model", ModelStruct),
        ("k_bits", c_int32),
        ("v_bits", c_int32),
        ("bits_per_value", c_double),
        ("sink_tokens", c_int32),
        ("recent_tokens", c_int32),
    ]


class PlaneStruct(Structure):
    _fields_: ClassVar = [
        ("head_dim", c_int32),
        ("bits", c_int32),
        ("group_size", c_int32),
        ("has_zero_points", c_int32),
        ("code_row_bytes", c_int64),
        ("scales_offset", c_int64),
        ("zeros_offset", c_int64),
        ("plane_bytes", c_int64),
    ]


class CodecSideStruct(Structure):
    _fields_: ClassVar = [
        ("bits", c_int32),
        ("group_size", c_int32),
        ("has_zero_points", c_int32),
        ("scale_fit", c_int32),
        ("transform", FLOATS),
        ("attend_transform", FLOATS),
        ("mean", FLOATS),
        ("clip_ratio", FLOATS),
        ("num_pairs", c_int32),
        ("pairing", c_int32),
        ("inv_freq", FLOATS),
        ("magnitude", c_float),
        ("is_trellis", c_int32),
    ]


class CacheOptionsStruct(Structure):
    _fields_: ClassVar = [
        ("struct_bytes", c_size_t),
        ("num_pages", c_int64),
        ("max_sequences", c_int32),
        ("sink_tokens", c_int32),
        ("recent_tokens", c_int32),
        ("max_append_tokens", c_int64),
        ("max_position", c_int32),
        ("num_threads", c_int32),
    ]


class QueriesStruct(Structure):
    _fields_: ClassVar = [
        ("struct_bytes", c_size_t),
        ("q", FLOATS),
        ("out", FLOATS),
        ("num_queries", c_int64),
        ("scale", c_float),
        ("soft_cap", c_float),
        ("sliding_window", c_int32),
        ("sinks", FLOATS),
        ("lse", FLOATS),
    ]


class PageQueriesStruct(Structure):
    _fields_: ClassVar = [
        ("struct_bytes", c_size_t),
        ("q", FLOATS),
        ("out", FLOATS),
        ("lse", FLOATS),
        ("query_positions", INT32S),
        ("num_queries", c_int64),
        ("num_q_heads", c_int32),
        ("num_threads", c_int32),
        ("pages", UINT8S),
        ("num_pages", c_int64),
        ("block_table", INT32S),
        ("num_tokens", c_int64),
        ("copy_rows", INT32S),
        ("k_copies", UINT16S),
        ("v_copies", UINT16S),
        ("num_copies", c_int64),
        ("sink_tokens", c_int32),
        ("recent_tokens", c_int32),
        ("scale", c_float),
        ("soft_cap", c_float),
        ("sliding_window", c_int32),
        ("sinks", FLOATS),
    ]


class TensorStruct(Structure):
    _fields_: ClassVar = [
        ("name", c_char_p),
        ("data", FLOATS),
        ("rank", c_int32),
        ("shape", c_int64 * 4),
    ]


class TextStruct(Structure):
    _fields_: ClassVar = [("key", c_char_p), ("value", c_char_p)]


class RopeStruct(Structure):
    _fields_: ClassVar = [
        ("pairing", c_int32),
        ("num_pairs", c_int32),
        ("inv_freq", FLOATS),
        ("magnitude", c_float),
    ]


class LayerRowsStruct(Structure):
    _fields_: ClassVar = [
        ("struct_bytes", c_size_t),
        ("layer", c_int32),
        ("num_q_heads", c_int32),
        ("num_kv_heads", c_int32),
        ("head_dim_k", c_int32),
        ("head_dim_v", c_int32),
        ("scale", c_float),
        ("rope", POINTER(RopeStruct)),
        ("num_tokens", c_int64),
        ("positions", INT32S),
        ("queries", FLOATS),
        ("keys", FLOATS),
        ("values", FLOATS),
        ("outputs", FLOATS),
    ]


class HeadStatisticsStruct(Structure):
    _fields_: ClassVar = [
        ("num_queries", c_int64),
        ("num_tokens", c_int64),
        ("num_values", c_int64),
        ("query_covariance", DOUBLES),
        ("output_covariance", DOUBLES),
        ("key_sum", DOUBLES),
        ("key_square_sum", DOUBLES),
        ("value_sum", DOUBLES),
    ]


_OUT = POINTER(c_void_p)
_HANDLE = c_void_p

# Functions that return a status: argument types.
_STATUS_FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "oscar_method_open": (c_char_p, POINTER(ModelStruct), _OUT),
    "oscar_method_describe": (_HANDLE, POINTER(MethodInfoStruct)),
    "oscar_codec_create": (_HANDLE, c_int32, c_int32, _OUT),
    "oscar_encode_keys": (_HANDLE, FLOATS, INT32S, c_int64, UINT8S),
    "oscar_encode_values": (_HANDLE, FLOATS, c_int64, UINT8S),
    "oscar_decode_keys": (_HANDLE, UINT8S, INT32S, c_int64, FLOATS),
    "oscar_decode_values": (_HANDLE, UINT8S, c_int64, FLOATS),
    "oscar_cache_options_init": (_HANDLE, POINTER(CacheOptionsStruct)),
    "oscar_cache_create": (_HANDLE, POINTER(CacheOptionsStruct), _OUT),
    "oscar_sequence_create": (_HANDLE, POINTER(c_int32)),
    "oscar_sequence_fork": (_HANDLE, c_int32, POINTER(c_int32)),
    "oscar_sequence_free": (_HANDLE, c_int32),
    "oscar_sequence_truncate": (_HANDLE, c_int32, c_int64),
    "oscar_sequence_num_tokens": (_HANDLE, c_int32, POINTER(c_int64)),
    "oscar_append_begin": (_HANDLE, c_int32, c_int64),
    "oscar_append_layer": (_HANDLE, c_int32, c_int32, FLOATS, FLOATS),
    "oscar_attend": (_HANDLE, c_int32, c_int32, POINTER(QueriesStruct)),
    "oscar_token_bytes": (_HANDLE, c_int32, c_int32, c_int64, UINT8S, c_size_t),
    "oscar_codec_key_plane": (_HANDLE, POINTER(PlaneStruct)),
    "oscar_codec_value_plane": (_HANDLE, POINTER(PlaneStruct)),
    "oscar_codec_key_side": (_HANDLE, POINTER(CodecSideStruct)),
    "oscar_codec_value_side": (_HANDLE, POINTER(CodecSideStruct)),
    "oscar_encode_pages": (
        *(_HANDLE, FLOATS, FLOATS, INT32S, INT64S, c_int64),
        *(c_int32, UINT8S, c_int64),
    ),
    "oscar_attend_pages": (_HANDLE, POINTER(PageQueriesStruct)),
    "oscar_artefact_load": (c_char_p, _OUT),
    "oscar_artefact_create": (
        *(POINTER(TensorStruct), c_int64),
        *(POINTER(TextStruct), c_int64, _OUT),
    ),
    "oscar_artefact_save": (_HANDLE, c_char_p),
    "oscar_artefact_tensor": (_HANDLE, c_int64, POINTER(TensorStruct)),
    "oscar_artefact_text": (_HANDLE, c_int64, POINTER(TextStruct)),
    "oscar_artefact_check_model": (_HANDLE, c_char_p, POINTER(ModelStruct), c_char_p),
    "oscar_hash": (c_void_p, c_size_t, c_char_p),
    "oscar_collector_create": (c_uint64, _OUT),
    "oscar_collector_add": (_HANDLE, POINTER(LayerRowsStruct)),
    "oscar_collector_head": (_HANDLE, c_int32, c_int32, POINTER(HeadStatisticsStruct)),
    "oscar_fit": (_HANDLE, c_char_p, c_char_p, c_char_p, c_int32, _OUT),
}

# Functions that return something else: result, argument types.
_PLAIN_FUNCTIONS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "oscar_version": (c_char_p, ()),
    "oscar_abi_version": (ctypes.c_int, ()),
    "oscar_last_error": (c_char_p, ()),
    "oscar_kernels": (c_char_p, ()),
    "oscar_method_free": (None, (_HANDLE,)),
    "oscar_codec_free": (None, (_HANDLE,)),
    "oscar_codec_key_bytes": (c_size_t, (_HANDLE,)),
    "oscar_codec_value_bytes": (c_size_t, (_HANDLE,)),
    "oscar_codec_page_bytes": (c_size_t, (_HANDLE,)),
    "oscar_cache_free": (None, (_HANDLE,)),
    "oscar_cache_bytes": (c_uint64, (_HANDLE,)),
    "oscar_cache_num_free_pages": (c_int64, (_HANDLE,)),
    "oscar_artefact_free": (None, (_HANDLE,)),
    "oscar_artefact_num_tensors": (c_int64, (_HANDLE,)),
    "oscar_artefact_num_texts": (c_int64, (_HANDLE,)),
    "oscar_collector_free": (None, (_HANDLE,)),
    "oscar_collector_num_non_finite": (c_int64, (_HANDLE,)),
}


def library_path() -> pathlib.Path:
    """The library that is loaded: $OSCAR_LIBRARY, else the one inside the package."""
    given = os.environ.get("OSCAR_LIBRARY")
    if given:
        return pathlib.Path(given)
    return pathlib.Path(__file__).parent / "lib" / "liboscar.so.1"


def _load() -> ctypes.CDLL:
    path = library_path()
    try:
        loaded = ctypes.CDLL(str(path))
    except OSError as error:
        raise ImportError(
            f"liboscar could not be loaded from {path} ({error}); "
            "install the package, or set OSCAR_LIBRARY to a build of it"
        ) from None
    for name, arguments in _STATUS_FUNCTIONS.items():
        _declare(loaded, path, name, ctypes.c_int, arguments)
    for name, (result, arguments) in _PLAIN_FUNCTIONS.items():
        _declare(loaded, path, name, result, arguments)
    if loaded.oscar_abi_version() != ABI_VERSION:
        raise ImportError(
            f"{path} has ABI version {loaded.oscar_abi_version()}; this package needs {ABI_VERSION}"
        )
    return loaded


def _declare(
    loaded: ctypes.CDLL, path: pathlib.Path, name: str, result: Any, arguments: tuple[Any, ...]
) -> None:
    try:
        function = getattr(loaded, name)
    except AttributeError:
        raise ImportError(f"{path} has no {name}; it is older than this package") from None
    function.restype = result
    function.argtypes = arguments


lib = _load()


def call(name: str, *arguments: Any) -> None:
    """Calls a function that returns a status; raises what the status stands for."""
    status = getattr(lib, name)(*arguments)
    if status != 0:
        error = BY_STATUS.get(status, InternalError)
        raise error(lib.oscar_last_error().decode("utf-8", "replace"))


def create(name: str, *arguments: Any) -> c_void_p:
    """Calls a function whose last parameter receives a handle; returns the handle."""
    handle = c_void_p()
    call(name, *arguments, ctypes.byref(handle))
    return handle


def version() -> str:
    """Version of the loaded library, e.g. "0.1.0"."""
    return lib.oscar_version().decode()


def kernels() -> str:
    """Name of the CPU kernels in use, e.g. "avx2"; $OSCAR_CPU forces one."""
    name = lib.oscar_kernels()
    if name is None:
        raise InvalidArgumentError(lib.oscar_last_error().decode())
    return name.decode()


def pointer(array: np.ndarray | None, kind: Any) -> Any:
    """Address of an array's data for a pointer parameter; None is NULL."""
    return None if array is None else array.ctypes.data_as(kind)


def rows(name: str, value: Any, shape: tuple[int | None, ...], dtype: Any) -> np.ndarray:
    """`value` as a C-contiguous array of `dtype`. None in `shape`: any size."""
    array = np.ascontiguousarray(value, dtype=dtype)
    right = len(array.shape) == len(shape) and all(
        want is None or have == want for have, want in zip(array.shape, shape, strict=True)
    )
    if not right:
        wanted = ", ".join("any" if size is None else str(size) for size in shape)
        raise InvalidArgumentError(f"{name} has shape {list(array.shape)}; right: [{wanted}]")
    return array
