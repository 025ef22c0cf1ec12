"""One archive with vLLM, what it misses and this package, for a GPU machine without a network.

Usage: pack.py --vllm WHEEL --wheels FOLDER --package python/oscar_kv --library liboscar.so
               [--cuda-library liboscar_cuda.so] --entry-points FILE --out site.tar.xz

What is left out of vLLM: compiled parts that a dense model in BF16 does not call, GPU code of other
cards, and tuning tables. xgrammar (43 MB) is replaced by a stub; structured output then fails.
Unpack it to a folder and put that on PYTHONPATH.
"""

import argparse
import io
import pathlib
import re
import tarfile
import zipfile
from collections.abc import Iterator

import fatbin

ARCHITECTURE = 90
COMPILED = re.compile(
    r"vllm/(_C_stable_libtorch|vllm_flash_attn/_vllm_fa3_C|cumem_allocator|spinloop|fs_io_C)"
    r"\.abi3\.so"
)
LEFT_OUT = re.compile(
    r"vllm/third_party/(deep_gemm|fmha_sm100)/|vllm/vllm-rs$|__pycache__"
    r"|/(fused_moe|quantization/utils)/configs/.*\.json$"
)
STUB = '''"""Stands for xgrammar: its names import, and using one raises."""


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)

    def refuse(self, *arguments, **keywords):
        raise ImportError("xgrammar is not here")

    return type(name, (), {"__init__": refuse})
'''
STUBBED = ("__init__", "structural_tag", "openai_tool_call_schema")


def wheel_files(path: pathlib.Path) -> Iterator[tuple[str, bytes]]:
    """Name where it is installed, and content, of each file of a wheel that is importable."""
    with zipfile.ZipFile(path) as wheel:
        for name in wheel.namelist():
            data = re.fullmatch(r"[^/]+\.data/(\w+)/(.*)", name)
            if name.endswith("/") or (data and data[1] not in ("purelib", "platlib")):
                continue
            yield data[2] if data else name, wheel.read(name)


def vllm_files(path: pathlib.Path) -> Iterator[tuple[str, bytes]]:
    for name, content in wheel_files(path):
        if LEFT_OUT.search(name):
            continue
        if name.startswith("vllm/") and name.endswith(".so"):
            if not COMPILED.fullmatch(name):
                continue
            content = fatbin.prune(content, ARCHITECTURE)
        yield name, content


def package_files(options: argparse.Namespace) -> Iterator[tuple[str, bytes]]:
    for path in sorted(options.package.rglob("*.py")):
        yield f"oscar_kv/{path.relative_to(options.package)}", path.read_bytes()
    yield "oscar_kv/lib/liboscar.so.1", options.library.read_bytes()
    if options.cuda_library:
        content = fatbin.prune(options.cuda_library.read_bytes(), ARCHITECTURE)
        yield "oscar_kv/lib/liboscar_cuda.so.1", content
    about = "Metadata-Version: 2.1\nName: oscar-kv\nVersion: 0\n"
    yield "oscar_kv-0.dist-info/METADATA", about.encode()
    yield "oscar_kv-0.dist-info/entry_points.txt", options.entry_points.read_bytes()


def files(options: argparse.Namespace) -> Iterator[tuple[str, bytes]]:
    yield from package_files(options)
    if options.vllm:
        yield from vllm_files(options.vllm)
    for wheel in sorted(options.wheels.glob("*.whl")) if options.wheels else []:
        if not wheel.name.startswith("xgrammar"):
            yield from wheel_files(wheel)
    for name in STUBBED:
        yield f"xgrammar/{name}.py", STUB.encode()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("vllm", "wheels", "package", "library", "cuda-library", "entry-points", "out"):
        needed = name in ("package", "library", "entry-points", "out")
        parser.add_argument(f"--{name}", type=pathlib.Path, required=needed)
    options = parser.parse_args()
    part = options.out.with_suffix(".part")
    with tarfile.open(part, "w:xz", preset=3) as archive:
        for name, content in files(options):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), 0o644
            archive.addfile(entry, io.BytesIO(content))
    part.rename(options.out)
    print(f"{options.out}: {options.out.stat().st_size / 2**20:.1f} MiB")


if __name__ == "__main__":
    main()
