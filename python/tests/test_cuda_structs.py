"""The structs that Python passes to liboscar_cuda are the C header's, byte for byte."""

import ctypes
import pathlib
import re
import runpy
import subprocess

ROOT = pathlib.Path(__file__).parents[2]
STRUCTS = ROOT / "python" / "oscar_kv" / "serving" / "cuda_structs.py"
NAMES = {
    "Quant": "oscar_cuda_quant",
    "Shape": "oscar_cuda_shape",
    "PlanInfo": "oscar_cuda_plan_info",
    "AttendArgs": "oscar_cuda_attend_args",
    "EncodeSide": "oscar_cuda_encode_side",
    "EncodeArgs": "oscar_cuda_encode_args",
    "DequantizeArgs": "oscar_cuda_dequantize_args",
}


def by_compiler(folder: pathlib.Path, fields: dict[str, list[str]]) -> list[str]:
    """Version, then "struct size" and "struct.field offset size", as a C compiler lays them out."""
    lines = ['printf("%d\\n", OSCAR_CUDA_ABI_VERSION);']
    for struct, names in fields.items():
        lines.append(f'printf("{struct} %zu\\n", sizeof({struct}));')
        lines += [
            f'printf("{struct}.{name} %zu %zu\\n", offsetof({struct}, {name}), '
            f"sizeof((({struct}*)0)->{name}));"
            for name in names
        ]
    source, program = folder / "layout.c", folder / "layout"
    source.write_text(
        "#include <stddef.h>\n#include <stdio.h>\n#include <oscar/oscar_cuda.h>\n"
        f"int main(void) {{ {' '.join(lines)} return 0; }}\n"
    )
    subprocess.run(["cc", "-I", ROOT / "include", source, "-o", program], check=True)
    return subprocess.run([program], check=True, capture_output=True, text=True).stdout.split("\n")


def test_layout_is_the_headers(tmp_path):
    # By path: what imports the whole of `serving` needs PyTorch.
    structs = runpy.run_path(str(STRUCTS))
    fields = {c: [name for name, _ in structs[py]._fields_] for py, c in NAMES.items()}
    here = [str(structs["ABI_VERSION"])]
    for py, struct in NAMES.items():
        kind = structs[py]
        here.append(f"{struct} {ctypes.sizeof(kind)}")
        for name in fields[struct]:
            field = getattr(kind, name)
            here.append(f"{struct}.{name} {field.offset} {field.size}")
    assert here == by_compiler(tmp_path, fields)[:-1]


def test_every_struct_is_compared():
    header = (ROOT / "include" / "oscar" / "oscar_cuda.h").read_text()
    defined = re.findall(r"^typedef struct (\w+) \{", header, re.M)
    assert sorted(defined) == sorted(NAMES.values())
