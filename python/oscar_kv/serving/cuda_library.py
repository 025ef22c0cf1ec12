"""liboscar_cuda through ctypes: the calls of include/oscar/oscar_cuda.h.

Functions take device pointers and a stream; none allocates or synchronises, so that they may be
captured in a CUDA graph.
"""

import ctypes
import os
import pathlib
from ctypes import POINTER, byref, c_int32, c_int64, c_uint64, c_void_p
from typing import Any

from oscar_kv.errors import BY_STATUS, InternalError, UnsupportedError
from oscar_kv.serving.cuda_structs import (
    ABI_VERSION,
    AttendArgs,
    DequantizeArgs,
    EncodeArgs,
    PlanInfo,
    Shape,
)

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
