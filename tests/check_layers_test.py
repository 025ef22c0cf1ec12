"""check_layers.py must find each kind of violation in a small tree, and nothing else."""

import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "scripts"))
import check_layers


class CheckLayers(unittest.TestCase):
    def setUp(self):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.root = pathlib.Path(holder.name)
        for header in ("src/base/a.h", "src/format/f.h", "src/cache/c.h", "src/reference/r.h"):
            self.write(header, "")
        self.write("integrations/ggml/plugin_api.h", '#include "format/f.h"\n')
        self.write("integrations/ggml/inner.h", "")

    def write(self, path, text):
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")

    def found(self):
        return check_layers.violations(self.root)

    def test_downward_includes_are_fine(self):
        self.write("src/cache/c.cpp", '#include "cache/c.h"\n#include "c.h"\n#include "base/a.h"\n')
        self.write("tools/oscar/main.cpp", "#include <CLI/CLI.hpp>\n#include <nlohmann/json.hpp>\n")
        self.write("src/eval/e.cpp", '#include "integrations/ggml/plugin_api.h"\n')
        self.assertEqual(self.found(), [])

    def test_upward_include(self):
        self.write("src/format/f.cpp", '#include <vector>\n#include "cache/c.h"\n')
        self.assertEqual(len(self.found()), 1)
        self.assertIn("src/format/f.cpp:2", self.found()[0])

    def test_reference_is_for_tests(self):
        self.write("src/cache/c_test.cpp", '#include "reference/r.h"\n')
        self.assertEqual(self.found(), [])
        self.write("src/cache/c.cpp", '#include "reference/r.h"\n')
        self.assertEqual(len(self.found()), 1)

    def test_fences(self):
        for number, name in enumerate(("Eigen/Dense", "CLI/CLI.hpp", "ggml-backend.h", "llama.h")):
            self.write(f"src/cache/fence{number}.cpp", f"#include <{name}>\n")
        self.assertEqual(len(self.found()), 4)

    def test_only_the_plugins_contract_is_shared(self):
        self.write("tools/oscar/main.cpp", '#include "integrations/ggml/inner.h"\n')
        self.assertEqual(len(self.found()), 1)

    def test_public_headers_stand_alone(self):
        self.write("include/oscar/oscar.h", '#include <stdint.h>\n#include "base/a.h"\n')
        self.assertEqual(len(self.found()), 1)

    def test_unknown_folder(self):
        self.write("src/misc/m.cpp", '#include "base/a.h"\n')
        self.assertEqual(len(self.found()), 1)


if __name__ == "__main__":
    unittest.main()
