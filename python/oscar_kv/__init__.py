"""OSCAR: a KV cache of about two bits a value.

The package binds the C interface of liboscar (`include/oscar/oscar.h`) for NumPy; `oscar_kv.ops`
has PyTorch operators, `oscar_kv.transformers` calibration and a cache for Hugging Face models.
Rows are float32 and hold keys and queries after RoPE.
"""

from oscar_kv._library import kernels, library_path, version
from oscar_kv.artefact import Artefact, ModelShape, Rope
from oscar_kv.cache import Cache
from oscar_kv.calibration import Collector, HeadStatistics
from oscar_kv.codec import PAGE_TOKENS, Codec, Method, Plane, Side
from oscar_kv.errors import (
    CorruptError,
    InternalError,
    InvalidArgumentError,
    IoError,
    MismatchError,
    NotFiniteError,
    NotFoundError,
    OscarError,
    OutOfPagesError,
    UnsupportedError,
)

__version__ = version()

__all__ = [
    "PAGE_TOKENS",
    "Artefact",
    "Cache",
    "Codec",
    "Collector",
    "CorruptError",
    "HeadStatistics",
    "InternalError",
    "InvalidArgumentError",
    "IoError",
    "Method",
    "MismatchError",
    "ModelShape",
    "NotFiniteError",
    "NotFoundError",
    "OscarError",
    "OutOfPagesError",
    "Plane",
    "Rope",
    "Side",
    "UnsupportedError",
    "kernels",
    "library_path",
    "version",
]
