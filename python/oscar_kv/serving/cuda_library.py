"""liboscar_cuda through ctypes: structs and calls of include/oscar/oscar_cuda.h.

Functions take device pointers and a stream; none allocates or synchronises, so that they may be
captured in a CUDA graph.
"""

import ctypes
import os
import pathlib
from ctypes import POINTER, Structure, byref, c_char, c_float, c_int32, c_int64, c_uint64, c_void_p
from typing import Any, ClassVar

from oscar_kv.errors import BY_STATUS, InternalError, UnsupportedError

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


_FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "oscar_cuda_check_device": (ctypes.c_int,),
    "oscar_cuda_plan_create": (POINTER(Shape), ctypes.c_int, POINTER(c_void_p)),
    "oscar_cuda_plan_describe": (c_void_p, POINTER(PlanInfo)),
    "oscar_cuda_prepare": (c_void_p, c_void_p, c_uint64, c_void_p),
    "oscar_cuda_attend": (c_void_p, POINTER(AttendArgs), c_void_p, c_uint64, c_void_p),
    "oscar_cuda_encode": (POINTER(EncodeArgs), c_void_p),
    "oscar_cuda_transform_image": (c_void_p, c_int32, c_int32, c_void_p, c_void_p),
    "oscar_cuda_transform_rows": (
        *(c_void_p, c_void_p, c_int64, c_int64, c_void_p, c_int64),
        *(c_int32, c_int32, c_int32, c_void_p),
    ),
    "oscar_cuda_dequantize": (POINTER(DequantizeArgs), c_void_p),
}


class CudaLibrary:
    """path: the library; None: $OSCAR_CUDA_LIBRARY, else the one inside the package."""

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        given = path or os.environ.get("OSCAR_CUDA_LIBRARY")
        inside = pathlib.Path(__file__).parents[1] / "lib" / "liboscar_cuda.so.1"
        self.path = pathlib.Path(given) if given else inside
        try:
            self._dll = ctypes.CDLL(str(self.path))
        except OSError as error:
            raise UnsupportedError(
                f"liboscar_cuda could not be loaded from {self.path} ({error}); build it "
                "(docs/vllm.md) and set OSCAR_CUDA_LIBRARY"
            ) from None
        for name, arguments in _FUNCTIONS.items():
            function = getattr(self._dll, name, None)
            if function is None:
                raise UnsupportedError(f"{self.path} has no {name}; it is older than this package")
            function.restype, function.argtypes = ctypes.c_int, arguments
        self._dll.oscar_cuda_last_error.restype = ctypes.c_char_p
        self._dll.oscar_cuda_transform_image_bytes.restype = c_uint64
        self._dll.oscar_cuda_plan_free.argtypes = (c_void_p,)
        version = self._dll.oscar_cuda_abi_version()
        if version != ABI_VERSION:
            raise UnsupportedError(
                f"{self.path} has ABI version {version}; this package needs {ABI_VERSION}"
            )

    def __call__(self, name: str, *arguments: Any) -> None:
        """Calls a function that returns a status; raises what the status stands for."""
        status = getattr(self._dll, name)(*arguments)
        if status != 0:
            message = self._dll.oscar_cuda_last_error().decode("utf-8", "replace")
            raise BY_STATUS.get(status, InternalError)(message)

    def check_device(self, device: int) -> None:
        """Raises UnsupportedError where this library has no code for the GPU, or there is none."""
        self("oscar_cuda_check_device", device)

    def image_bytes(self, num_kv_heads: int, head_dim: int) -> int:
        return self._dll.oscar_cuda_transform_image_bytes(num_kv_heads, head_dim)

    def plan(self, shape: Shape, device: int) -> tuple[c_void_p, PlanInfo]:
        """A plan that lives as long as the process: there is one for each batch size."""
        plan, info = c_void_p(), PlanInfo()
        self("oscar_cuda_plan_create", byref(shape), device, byref(plan))
        self("oscar_cuda_plan_describe", plan, byref(info))
        return plan, info
