"""`oscar serve` before the server runs: what is passed on, and what is refused, with its reason in
the last line and no model loaded."""

import os
import socket
import time

from cli_case import CliTest, main

# Stands for llama-server: has the device, and says what it was started with.
STAND_IN = """#!/bin/sh
[ "$1" = --list-devices ] && echo "OSCAR0: there" && exit 0
echo "arguments:" "$@"
echo "OSCAR_KV=$OSCAR_KV OSCAR_LOG=$OSCAR_LOG"
echo "GGML_BACKEND_PATH=$GGML_BACKEND_PATH"
exit 7
"""


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Serve(CliTest):
    def stand_in(self, text=STAND_IN):
        path = self.write("llama-server", text)
        os.chmod(path, 0o755)
        return path

    def serve(self, *arguments, server=None, model=None, kv="quarot"):
        return [
            "serve",
            "-m",
            model or self.tiny(),
            "--kv",
            kv,
            "--port",
            str(free_port()),
            "--server",
            server or self.stand_in(),
            *arguments,
        ]

    def test_options_are_passed_on(self):
        port = str(free_port())
        command = self.serve("-c", "512", "-np", "2", "-t", "1", "-ub", "64", "--seed", "-1")
        result = self.run_cli(*command, "--port", port, "--temp", "0.5", "--", "--help", "-cb")
        self.assertEqual(result.status, 7, result)
        model = str(self.folder / "tiny.gguf")
        self.assertIn(
            f"arguments: -m {model} -c 512 -np 2 -t 1 -ub 64 --seed -1 --temp 0.5 --help -cb "
            f"--host 127.0.0.1 --port {port}",
            result.out,
        )
        self.assertIn("OSCAR_KV=quarot OSCAR_LOG=\n", result.out)
        self.assertRegex(result.out, "GGML_BACKEND_PATH=/.*liboscar-ggml.so")
        self.assertIn("quarot, 2 slots, 512 tokens", result.err)

    def test_an_artefact_becomes_an_absolute_path(self):
        text = self.write("text.txt", self.words(2000))
        model = self.tiny()
        self.good("calibrate", "-m", model, "-f", text, "--tokens", "512", "-o", "a.safetensors")
        result = self.run_cli(*self.serve("-c", "512", kv="a.safetensors:k3v2", model=model))
        self.assertIn(f"OSCAR_KV={self.folder}/a.safetensors:k3v2 ", result.out, result)

    def test_llamas_own_cache(self):
        result = self.run_cli(*self.serve("-c", "512", kv="q8_0"))
        self.assertIn("-ctk q8_0 -ctv q8_0", result.out)
        self.assertIn("OSCAR_KV= ", result.out)

    def test_slots_go_through_the_proxy(self):
        slots = self.folder / "slots"
        slots.mkdir()
        result = self.run_cli(*self.serve("-c", "512", "--slot-save-path", str(slots)))
        self.assertEqual(result.status, 7, result)
        self.assertIn(f"--slot-save-path {slots}", result.out)
        self.assertRegex(result.out, r"--host /\S*server.sock")
        self.refused(
            *self.serve("--slot-save-path", str(self.folder / "none")), names=["none", "no folder"]
        )
        self.refused(
            *self.serve("--slot-save-path", str(slots), "--ssl-key-file", "x"),
            names=["--ssl-key-file", "plain HTTP"],
        )

    def test_what_takes_the_cache_away_is_refused(self):
        for options, names in (
            (["-ctk", "q8_0"], ["-ctk", "--kv"]),
            (["--cache-type-v=q4_0"], ["--cache-type-v"]),
            (["-nkvo"], ["-nkvo"]),
            (["-ngl", "3"], ["-ngl"]),
            (["--device", "none"], ["--device"]),
            (["-fa", "off"], ["-fa off"]),
            (["--flash-attn=off"], ["-fa off"]),
        ):
            self.refused(*self.serve(*options), names=names)

    def test_a_context_that_does_not_fit_names_both_sizes(self):
        start = time.monotonic()
        result = self.refused(
            *self.serve("-c", "1000000000"), names=["1000000000 tokens", "available", "-c "]
        )
        self.assertGreaterEqual(result.err.count("iB"), 4)
        self.assertLess(time.monotonic() - start, 5)

    def test_reasons_are_in_the_last_line(self):
        """B45: within 5 s, exit 1, before any weights."""
        start = time.monotonic()
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = str(taken.getsockname()[1])
            self.refused(*self.serve(), "--port", port, names=[port, "Address already in use"])
        self.refused(*self.serve(server="none"), names=["none", "--server"])
        self.refused(*self.serve(model="none.gguf"), names=["none.gguf"])
        self.refused(*self.serve(kv="oskar"), names=["oskar", "oscar-plus"])
        self.refused(*self.serve(kv="quarot:k5v2"), names=["k5v2"])
        self.refused(*self.serve(model=self.tiny(head_dim=24)), names=["head size 24", "32"])
        self.refused(*self.serve("--host", "no such host"), names=["--host", "no such host"])
        self.refused(*self.serve(), "--port", "70000", names=["--port"], status=2)
        self.environment["OSCAR_CPU"] = "abacus"
        self.refused(*self.serve(), names=["OSCAR_CPU", "abacus", "scalar"])
        self.assertLess(time.monotonic() - start, 20)

    def test_a_server_of_another_version(self):
        old = self.stand_in(
            "#!/bin/sh\necho oscar: this llama.cpp brings ggml 0.0.1; the plugin ...\n"
        )
        self.refused(*self.serve(server=old), names=[old, "brings ggml 0.0.1"])
        silent = self.stand_in("#!/bin/sh\nexit 3\n")
        self.refused(*self.serve(server=silent), names=[silent, "OSCAR0", "3", "GGML_BACKEND_DL"])

    def test_more_threads_than_processors_are_mentioned(self):
        result = self.run_cli(*self.serve("-c", "512", "-t", "500"))
        self.assertIn("-t 500 is more than the", result.err)


if __name__ == "__main__":
    main()
