"""OSCAR_WITH_CUDA: what is in the way of the kernels is said at configure, in one line."""

import os
import pathlib
import re
import shutil
import stat
import subprocess
import sys
import tempfile
import unittest

REPOSITORY = pathlib.Path(__file__).resolve().parents[1]
CC, CXX, NVCC = os.environ["CC"], os.environ["CXX"], os.environ.get("NVCC", "")
GCC = subprocess.run([CXX, "-dumpversion"], capture_output=True, text=True).stdout.strip()
IS_GCC = (
    "__clang__"
    not in subprocess.run(
        [CXX, "-dM", "-E", "-x", "c++", "/dev/null"], capture_output=True, text=True, check=True
    ).stdout
)

PROJECT = f"""cmake_minimum_required(VERSION 3.25)
project(choice C CXX)
include("{REPOSITORY}/cmake/CudaChoice.cmake")
message(STATUS "something else")
"""


class Choice(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="a path with spaces ")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        (self.folder / "CMakeLists.txt").write_text(PROJECT)
        tools = tempfile.TemporaryDirectory(prefix="tools-")
        self.addCleanup(tools.cleanup)
        self.tools = pathlib.Path(tools.name)
        for name in ("cmake", "make", "ninja", "python3", "ar", "nm", "ld", "as", "ranlib"):
            if found := shutil.which(name):
                (self.tools / name).symlink_to(found)

    def configure(self, *options, source=None):
        # PATH without nvcc, and no other place to look; what CMake calls before a compiler may be
        # one that this PATH does not have.
        environment = {
            k: v
            for k, v in os.environ.items()
            if k not in ("CUDACXX", "CUDAHOSTCXX") and not k.endswith("_COMPILER_LAUNCHER")
        }
        environment["PATH"] = str(self.tools)
        return subprocess.run(
            [
                "cmake",
                *("-S", source or self.folder, "-B", self.folder / "build of it"),
                *(f"-DCMAKE_C_COMPILER={CC}", f"-DCMAKE_CXX_COMPILER={CXX}"),
                *("-DOSCAR_NVCC_FOLDERS=", *options),
            ],
            env=environment,
            capture_output=True,
            text=True,
        )

    def last_line(self, *options, source=None):
        """What the last line before CMake's own says."""
        result = self.configure(*options, source=source)
        self.assertEqual(result.returncode, 0, result.stderr)
        lines = result.stdout.splitlines()
        return lines[lines.index("-- Configuring done") - 1].removeprefix("-- ")

    def refused(self, *options):
        """The one line that says why."""
        result = self.configure(*options)
        self.assertEqual(result.returncode, 1, result.stdout)
        lines = [line.strip() for line in result.stderr.splitlines()]
        reasons = [line for line in lines if line.startswith("OSCAR_")]
        self.assertEqual(len(reasons), 1, result.stderr)
        return reasons[0]

    def nvcc(self, version, newest_gcc=99, compiles=True):
        """A toolkit that says it is of this version and takes GCC up to newest_gcc."""
        toolkit = self.folder / f"cuda {version}"
        (toolkit / "bin").mkdir(parents=True)
        (toolkit / "include" / "crt").mkdir(parents=True)
        (toolkit / "include" / "crt" / "host_config.h").write_text(
            f"#if __GNUC__ > {newest_gcc}\n#error -- unsupported GNU version!\n#endif\n"
            "#if (__clang_major__ >= 15) || (__clang_major__ < 3)\n#error -- clang\n#endif\n"
        )
        compiler = toolkit / "bin" / "nvcc"
        fails = "" if compiles else 'echo "nvcc fatal : cannot find cicc" >&2; exit 1'
        compiler.write_text(f"""#!/bin/sh
case "$*" in
  --version) echo "Cuda compilation tools, release {version}, V{version}.99" ;;
  --list-gpu-arch) printf 'compute_80\\ncompute_90\\n' ;;
  *) {fails or ":"} ;;
esac
""")
        compiler.chmod(compiler.stat().st_mode | stat.S_IXUSR)
        return f"-DCMAKE_CUDA_COMPILER={compiler}"

    def test_without_nvcc(self):
        self.assertIn("OSCAR_WITH_CUDA is off", self.last_line())
        line = self.last_line("-DOSCAR_WITH_CUDA=auto")
        self.assertRegex(line, "^CPU only, because no nvcc was found")
        self.assertIn("no nvcc was found", self.refused("-DOSCAR_WITH_CUDA=on"))
        self.assertIn("no nvcc was found", self.refused("-DOSCAR_WITH_CUDA=ON"))
        self.assertIn("'maybe'", self.refused("-DOSCAR_WITH_CUDA=maybe"))

    def test_the_whole_project_ends_with_the_reason(self):
        line = self.last_line("-DOSCAR_WITH_CUDA=auto", "-DOSCAR_WITH_LLAMA=OFF", source=REPOSITORY)
        self.assertRegex(line, "^CPU only, because no nvcc was found")

    def test_an_nvcc_that_does_not_work(self):
        missing = f"-DCMAKE_CUDA_COMPILER={self.folder}/none/nvcc"
        self.assertIn("no working nvcc", self.refused("-DOSCAR_WITH_CUDA=on", missing))
        self.assertIn("no working nvcc", self.last_line("-DOSCAR_WITH_CUDA=auto", missing))
        line = self.refused("-DOSCAR_WITH_CUDA=on", self.nvcc("12.3"))
        self.assertIn("12.3.99", line)
        self.assertIn("12.4", line)
        line = self.refused("-DOSCAR_WITH_CUDA=on", self.nvcc("12.9", compiles=False))
        self.assertIn("cannot find cicc", line)

    @unittest.skipUnless(IS_GCC, "the compiler of this build is not GCC")
    def test_a_compiler_that_is_too_new(self):
        major = int(GCC.split(".")[0])
        nvcc = self.nvcc("12.4", newest_gcc=major - 1)
        line = self.refused("-DOSCAR_WITH_CUDA=on", nvcc)
        self.assertRegex(line, rf"nvcc 12\.4\.99 accepts GCC up to {major - 1};.* GCC {major}\.")
        line = self.last_line("-DOSCAR_WITH_CUDA=auto", nvcc)
        self.assertRegex(line, rf"^CPU only, because nvcc 12\.4\.99 accepts .* GCC {major}\.")
        # This pair passes; the toolkit has no libraries.
        line = self.refused("-DOSCAR_WITH_CUDA=on", self.nvcc("12.8", newest_gcc=major))
        self.assertIn("cudart_static", line)

    def test_a_clang_that_is_too_new(self):
        clang = self.folder / "clang++"
        clang.write_text(
            "#!/bin/sh\necho '#define __GNUC__ 4'\necho '#define __clang_major__ 15'\n"
            "echo '#define __clang_minor__ 2'\n"
        )
        clang.chmod(0o755)
        line = self.refused(
            "-DOSCAR_WITH_CUDA=on", f"-DCMAKE_CUDA_HOST_COMPILER={clang}", self.nvcc("12.6")
        )
        self.assertIn("nvcc 12.6.99 accepts clang up to 14;", line)
        self.assertIn("clang 15.2", line)

    def test_architectures(self):
        nvcc = self.nvcc("12.4")
        for text, words in (
            ("75", ["'75'", "80 or more"]),
            ("native", ["'native'", "80 or more"]),
            ("80;120-real", ["'120-real'", "12.4.99 does not know"]),
        ):
            line = self.refused("-DOSCAR_WITH_CUDA=on", nvcc, f"-DOSCAR_CUDA_ARCHITECTURES={text}")
            for word in words:
                self.assertIn(word, line)

    @unittest.skipUnless(NVCC, "there is no nvcc on this machine")
    def test_an_nvcc_that_works(self):
        compiler = f"-DCMAKE_CUDA_COMPILER={NVCC}"
        line = self.last_line("-DOSCAR_WITH_CUDA=auto", compiler)
        if line.startswith("CPU only"):
            self.assertIn(
                line.removeprefix("CPU only, because "),
                self.refused("-DOSCAR_WITH_CUDA=on", compiler),
            )
            self.skipTest(line)
        self.assertRegex(line, "^CUDA: sm_80, sm_90, sm_90a, .*PTX of 8.0; nvcc [0-9.]+ with ")
        one = self.last_line("-DOSCAR_WITH_CUDA=on", compiler, "-DOSCAR_CUDA_ARCHITECTURES=80-real")
        self.assertTrue(re.match("CUDA: sm_80; nvcc", one), one)


if __name__ == "__main__":
    unittest.main(argv=sys.argv)
