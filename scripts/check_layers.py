"""Checks the direction of every #include against the layer diagram of docs/architecture.md.

Usage: check_layers.py [REPOSITORY]
Prints one line for each include that goes against an arrow or across a fence, and then exits 1.
"""

import pathlib
import re
import sys

# Folder: the folders whose headers it may include, besides its own.
LAYERS = {
    "src/base": (),
    "src/format": ("src/base",),
    "src/reference": ("src/format", "src/base"),
    "src/simd": (),
    "src/kernels": ("src/simd", "src/format", "src/base"),
    "src/methods": ("src/kernels", "src/format", "src/base"),
    "src/cuda": ("src/format", "src/base"),
    "src/calibrate": ("src/methods", "src/kernels", "src/format", "src/base"),
    "src/cache": ("src/methods", "src/kernels", "src/format", "src/base"),
    "src/attention": ("src/cache", "src/methods", "src/kernels", "src/format", "src/base"),
    "src/capi": (
        "src/attention",
        "src/cache",
        "src/calibrate",
        "src/methods",
        "src/kernels",
        "src/format",
        "src/base",
    ),
    "src/eval": (
        "src/attention",
        "src/cache",
        "src/calibrate",
        "src/methods",
        "src/kernels",
        "src/reference",
        "src/format",
        "src/base",
    ),
    "integrations/ggml": (
        "src/attention",
        "src/cache",
        "src/calibrate",
        "src/methods",
        "src/kernels",
        "src/format",
        "src/base",
    ),
    "tools/oscar": (
        "src/eval",
        "src/attention",
        "src/cache",
        "src/calibrate",
        "src/methods",
        "src/kernels",
        "src/cuda",
        "src/format",
        "src/base",
    ),
}
EVERYTHING = tuple(LAYERS)
# Tests may judge by the reference and by any layer below; these folders hold nothing but tests.
FREE_FOLDERS = ("tests", "fuzz", "bench")
TEST_FILE = re.compile(r"_(test|bench)(_[a-z0-9]+)?\.(cpp|h)$|^test_|^testing_")
# What tests of a folder may include on top; the CUDA codec is compared with the CPU's.
TESTS_MAY_ALSO = {"src/reference": EVERYTHING, "src/kernels": ("src/cuda",)}

# Headers that others may include although their folder is not below: the plugin's contract.
SHARED_HEADERS = {"integrations/ggml/plugin_api.h": ("src/eval", "tools/oscar")}

# Third-party headers: pattern of the included name, and the folders that may include them.
FENCES = (
    ("Eigen", re.compile(r"^(Eigen|unsupported/Eigen)/"), ("src/calibrate",)),
    ("nlohmann/json", re.compile(r"^nlohmann/"), ("src/format", "src/eval", "tools/oscar")),
    ("CLI11", re.compile(r"^CLI/"), ("tools/oscar",)),
    (
        "ggml and llama.cpp",
        re.compile(r"^(ggml|llama|gguf)[a-z0-9-]*\.h$"),
        ("integrations/ggml", "src/eval", "tools/oscar"),
    ),
    (
        "the CUDA toolkit",
        re.compile(r"^(cuda[a-z0-9_]*\.h|cuda/|cooperative_groups|cublas)"),
        ("src/cuda",),
    ),
    ("libcurl", re.compile(r"^curl/"), ("src/eval",)),
    ("xxHash", re.compile(r"^xxh(ash|3)\.h$"), ("src/base",)),
)

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
SOURCES = (".h", ".cpp", ".c", ".inc", ".cu", ".cuh")


def folder_of(path: str) -> str | None:
    """The layer that a path relative to the repository belongs to, None outside all of them."""
    for folder in EVERYTHING + FREE_FOLDERS:
        if path.startswith(folder + "/"):
            return folder
    return None


def resolve(root: pathlib.Path, source: pathlib.Path, name: str) -> str | None:
    """Path from root of the repository's header that `name` means; None for a foreign one."""
    for base in (source.parent, root / "src", root / "include", root):
        header = (base / name).resolve()
        if header.is_file() and header.is_relative_to(root):
            return header.relative_to(root).as_posix()
    return None


def check_include(root: pathlib.Path, source: pathlib.Path, name: str) -> str | None:
    """What is wrong with `source` including `name`, or None."""
    path = source.relative_to(root).as_posix()
    folder = folder_of(path)
    is_test = folder in FREE_FOLDERS or TEST_FILE.search(source.name) is not None
    header = resolve(root, source, name)
    if header is None:
        for library, pattern, folders in FENCES:
            if pattern.match(name) and folder not in folders and folder not in FREE_FOLDERS:
                return f"{library} is for {', '.join(folders)} only"
        return None
    target = folder_of(header)
    if header.startswith("include/") or target == folder or folder in FREE_FOLDERS:
        return None
    if folder in SHARED_HEADERS.get(header, ()) or target in LAYERS[folder]:
        return None
    if is_test and folder in TESTS_MAY_ALSO.get(target, ()):
        return None
    return f"{folder} may include {', '.join(LAYERS[folder]) or 'nothing'}, not {target}"


def violations(root: pathlib.Path) -> list[str]:
    root = root.resolve()
    found = []
    for top in ("src", "integrations", "tools", "include", *FREE_FOLDERS):
        for source in sorted((root / top).rglob("*")):
            if source.suffix not in SOURCES or not source.is_file():
                continue
            path = source.relative_to(root).as_posix()
            if top != "include" and folder_of(path) is None:
                found.append(f"{path} lies in no layer; known: {', '.join(LAYERS)}")
                continue
            for number, line in enumerate(source.read_text(encoding="utf-8").splitlines(), 1):
                match = INCLUDE.match(line)
                if not match:
                    continue
                name = match.group(2)
                if top == "include":
                    foreign = match.group(1) == '"' and not name.startswith("oscar/")
                    wrong = "include/ may include only itself and the standard" if foreign else None
                else:
                    wrong = check_include(root, source, name)
                if wrong:
                    found.append(f"{path}:{number}: includes {name}: {wrong}")
    return found


def main() -> int:
    here = pathlib.Path(__file__).resolve().parent.parent
    found = violations(pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else here)
    for line in found:
        print(line)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
