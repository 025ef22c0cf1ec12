"""Structs of include/oscar/oscar_cuda.h, field by field, for ctypes.

Imports nothing of the package, so that a benchmark can load this file where liboscar is not built.
"""

from ctypes import Structure, c_char, c_float, c_int32, c_int64, c_uint64, c_void_p
from typing import Any, ClassVar

ABI_VERSION = 2


def _fields(kind: Any, *names: str) -> list[tuple[str, Any]]:
    return [(name, kind) for name in names]


class Quant(Structure):
    _fields_: ClassVar = _fields(c_int32, "bits", "group_size", "affine", "scale_fit")


class Shape(Structure):
    _fields_: ClassVar = [
        *_fields(c_int32, "num_seqs", "num_queries", "num_q_heads", "num_kv_heads", "head_dim"),
        *_fields(Quant, "key", "value"),
        ("max_seq_len", c_int64),
        *_fields(
            c_int32, "sink_tokens", "recent_tokens", "sliding_window", "has_copies", "mean_pairs"
        ),
    ]


class PlanInfo(Structure):
    _fields_: ClassVar = [
        ("kernel", c_char * 32),
        ("reason", c_char * 160),
        ("workspace_bytes", c_uint64),
        *_fields(c_int32, "key_plane_bytes", "value_plane_bytes"),
    ]


class AttendArgs(Structure):
    _fields_: ClassVar = [
        ("pages", c_void_p),
        *_fields(c_int64, "page_stride_bytes", "head_stride_bytes", "num_pages"),
        ("block_table", c_void_p),
        ("block_table_stride", c_int64),
        *_fields(c_void_p, "seq_lens", "q", "out", "lse"),
        *_fields(c_int64, "q_token_stride", "out_token_stride"),
        *_fields(c_void_p, "copies", "copy_blocks"),
        *_fields(c_int32, "ring_rows", "overlap_previous"),
        *_fields(c_void_p, "mean_coefficients", "mean_tile", "mean_start", "learned_sinks"),
        *_fields(c_float, "scale", "soft_cap"),
        *_fields(c_void_p, "out_image", "raw_q"),
        ("raw_q_token_stride", c_int64),
    ]


class EncodeSide(Structure):
    _fields_: ClassVar = [
        ("rows", c_void_p),
        *_fields(c_int64, "token_stride", "head_stride"),
        *_fields(c_void_p, "transform", "transform_image", "mean", "clip_ratio"),
        ("quant", Quant),
    ]


class EncodeArgs(Structure):
    _fields_: ClassVar = [
        *_fields(EncodeSide, "key", "value"),
        ("num_tokens", c_int64),
        *_fields(c_int32, "num_kv_heads", "head_dim"),
        ("pages", c_void_p),
        *_fields(c_int64, "page_stride_bytes", "head_stride_bytes"),
        *_fields(c_void_p, "slots", "positions", "mean_tile", "mean_start"),
        *_fields(c_int32, "mean_pairs", "interleaved"),
        *_fields(c_void_p, "copies", "copy_slots"),
        ("rows_per_block", c_int32),
        ("non_finite", c_void_p),
        ("raw_key_copies", c_int32),
    ]


class DequantizeArgs(Structure):
    _fields_: ClassVar = [
        ("pages", c_void_p),
        *_fields(c_int64, "page_stride_bytes", "head_stride_bytes"),
        ("block_table", c_void_p),
        *_fields(c_int64, "first_token", "num_tokens"),
        *_fields(c_int32, "num_kv_heads", "head_dim"),
        *_fields(Quant, "key", "value"),
        *_fields(c_void_p, "keys", "values"),
        ("token_stride", c_int64),
    ]
