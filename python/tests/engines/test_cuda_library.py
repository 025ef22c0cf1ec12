"""liboscar_cuda that is not there, or no such library: named before a model is loaded."""

import pytest
from oscar_kv.errors import UnsupportedError
from oscar_kv.serving.cuda_library import CudaLibrary


def test_a_library_that_is_not_there(monkeypatch):
    monkeypatch.setenv("OSCAR_CUDA_LIBRARY", "/nowhere/liboscar_cuda.so")
    with pytest.raises(UnsupportedError, match="/nowhere/liboscar_cuda.so.*OSCAR_CUDA_LIBRARY"):
        CudaLibrary()


def test_a_library_of_another_kind(tmp_path):
    path = tmp_path / "liboscar_cuda.so"
    path.write_bytes(b"no library")
    with pytest.raises(UnsupportedError, match="could not be loaded from .*liboscar_cuda.so"):
        CudaLibrary(path)
    # A library, but without our functions.
    with pytest.raises(UnsupportedError, match="libm.so.6 has no oscar_cuda_check_device"):
        CudaLibrary("libm.so.6")
