"""`oscar doctor`: one line a check, and an exit status that says whether all is well."""

import json
import os
import pathlib
import shutil
import signal

import cli_case
from cli_case import INTERRUPTED, CliTest, main


class Doctor(CliTest):
    def checks(self, path):
        document = json.loads(pathlib.Path(path).read_text())
        return document["ok"], {check["name"]: check for check in document["checks"]}

    def test_all_is_well(self):
        path = self.folder / "d.json"
        result = self.good("doctor", "--json", str(path))
        ok, checks = self.checks(path)
        self.assertTrue(ok)
        self.assertEqual(len(result.out.splitlines()), len(checks))
        for name in ("processor", "kernels", "codec, scalar", "attention, scalar", "llama.cpp"):
            self.assertIn(name, checks)
        self.assertRegex(checks["GPU"]["text"], "^(CUDA: sm_|CPU only, because )")
        self.assertIn(checks["GPU"]["text"].split(";")[0], self.good("--version").out)
        self.assertIn("built for ggml", checks["plugin"]["text"])
        self.assertIn("llama-server", checks["llama-server"]["text"])
        self.assertIn("relative error", checks["attention, scalar"]["text"])

    def failing(self, name, *words, arguments=()):
        path = self.folder / "d.json"
        result = self.run_cli("doctor", *arguments, "--json", str(path))
        self.assertEqual(result.status, 1, result)
        ok, checks = self.checks(path)
        self.assertFalse(ok)
        self.assertEqual([n for n, check in checks.items() if not check["ok"]], [name])
        for word in words:
            self.assertIn(word, checks[name]["text"])
        self.assertIn("1 of", result.err.splitlines()[-1])

    def test_kernels_that_the_machine_lacks(self):
        self.environment["OSCAR_CPU"] = "abacus"
        self.failing("kernels", "abacus", "scalar")

    def test_a_server_that_is_none(self):
        self.failing("llama-server", "none", arguments=["--server", "none"])
        other = self.write("other", "#!/bin/sh\necho Available devices:\n")
        os.chmod(other, 0o755)
        self.failing("llama-server", other, "OSCAR0", arguments=["--server", other])

    def test_a_plugin_that_is_none(self):
        folder = pathlib.Path(cli_case.program).parent.parent
        broken = self.folder / "liboscar-ggml.so"
        shutil.copy(folder / "lib" / "liboscar-ggml.so", broken)
        broken.write_bytes(broken.read_bytes()[:1000])
        self.environment["OSCAR_PLUGIN"] = str(broken)
        path = self.folder / "d.json"
        result = self.run_cli("doctor", "--json", str(path))
        self.assertEqual(result.status, 1, result)
        _, checks = self.checks(path)
        self.assertFalse(checks["plugin"]["ok"])
        self.assertIn(str(broken), checks["plugin"]["text"])
        self.assertFalse(checks["llama-server"]["ok"])

    def test_standard_output_that_cannot_be_written(self):
        with open("/dev/full", "w") as full:
            self.refused("doctor", stdout=full, names=["cannot write to standard output"])

    def test_an_interrupt_ends_it_before_the_next_check(self):
        printed, path = self.folder / "printed", self.folder / "d.json"
        out, err = self.interrupt(
            ["doctor", "--json", str(path)],
            when=lambda: printed.exists() and printed.stat().st_size > 0,
        )
        self.assertEqual(err, [INTERRUPTED])
        self.assertFalse(path.exists())
        self.assertTrue(all(line.startswith("ok ") for line in out), out)
        self.assertNotIn("memory:", out[-1])

    def test_an_interrupt_does_not_wait_for_the_server(self):
        started = self.folder / "started"
        server = self.write("server", f"#!/bin/sh\ntouch {started}\nexec sleep 600\n")
        os.chmod(server, 0o755)
        for number in (signal.SIGINT, signal.SIGTERM):
            started.unlink(missing_ok=True)
            command = ["doctor", "--server", server]
            out, err = self.interrupt(command, when=started.exists, signals=[number])
            self.assertEqual(err, [INTERRUPTED])
            self.assertIn("plugin:", out[-1])
            self.assertTrue(all(line.startswith("ok ") for line in out), out)


if __name__ == "__main__":
    main()
