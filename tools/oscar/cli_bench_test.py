"""`oscar bench` on a tiny model: what it writes is what it promises, and it measures something."""

import fcntl
import json
import os
import pty
import select
import signal
import struct
import subprocess
import termios

import cli_case
from cli_case import INTERRUPTED, CliTest, main

LAYER = ["--shape", "4/2/64", "--kv", "f16", "--kv", "quarot"]


class Bench(CliTest):
    def results(self, *arguments):
        path = self.folder / "b.json"
        self.good("bench", *arguments, "--json", str(path))
        document = json.loads(path.read_text())
        self.assertTrue(document["host"])
        self.assertTrue(document["cpu"])
        # Instructions are counted, or it is said why not.
        name = "instructions_per_token"
        if arguments[0] in ("attention", "encode"):
            name += "_head"
        for row in document["results"]:
            if "instructions_not_counted" in document:
                self.assertIsNone(row[name])
            else:
                self.assertGreater(row[name], 0)
        return document

    def check_spread(self, spread):
        self.assertGreater(spread["p10"], 0)
        self.assertLessEqual(spread["p10"], spread["median"])
        self.assertLessEqual(spread["median"], spread["p90"])

    def test_decode(self):
        kvs = ["f16", "q8_0", "q4_0", "quarot", "naive:k16v16"]
        options = [part for kv in kvs for part in ("--kv", kv)]
        document = self.results(
            "decode", "-m", self.tiny(), "-t", "1", "--depth", "0,700,1800", "--rounds", "2",
            "--steps", "3", *options,
        )  # fmt: skip
        self.assertEqual(document["model"], "tiny.gguf")
        rows = document["results"]
        self.assertEqual(
            [(row["kv"], row["depth"]) for row in rows],
            [(kv, depth) for depth in (0, 700, 1800) for kv in kvs],
        )
        for row in rows:
            self.check_spread(row["tokens_per_s"])
            self.assertEqual(row["threads"], 1)
            self.assertTrue(row["method"])
            self.assertLess(0, row["attention_share"])
            self.assertLess(row["attention_share"], 1)
        # Attention is most of what a tiny model does in a deep context.
        shares = {(row["kv"], row["depth"]): row["attention_share"] for row in rows}
        for kv in kvs:
            self.assertGreater(shares[kv, 1800], shares[kv, 0])

    def test_a_filled_context_is_a_context(self):
        """Cells that were copied to their positions are attended as decoded ones are: the depth
        costs what a prompt of that length costs to follow."""
        arguments = ["-t", "1", "--rounds", "8", "--steps", "8", "--kv", "f16", "--kv", "quarot"]
        rows = self.results("decode", "-m", self.tiny(), "--depth", "16,1900", *arguments)[
            "results"
        ]
        speed = {(row["kv"], row["depth"]): row["tokens_per_s"]["median"] for row in rows}
        for kv in ("f16", "quarot"):
            self.assertLess(speed[kv, 1900], speed[kv, 16])

    def test_sliding_windows_are_decoded(self):
        model = self.tiny(architecture="gemma3", layers=7)
        rows = self.results(
            "decode", "-m", model, "-t", "1", "--depth", "1500", "--rounds", "1", "--kv", "f16",
            "--kv", "quarot",
        )["results"]  # fmt: skip
        self.assertEqual(len(rows), 2)

    def test_prefill(self):
        rows = self.results(
            "prefill", "-m", self.tiny(), "-t", "1", "--depth", "64,1100", "--rounds", "2", "--kv",
            "f16", "--kv", "quarot",
        )["results"]  # fmt: skip
        self.assertEqual([row["depth"] for row in rows], [64, 64, 1100, 1100])
        for row in rows:
            self.check_spread(row["tokens_per_s"])

    def test_attention(self):
        kvs = [
            "f16",
            "q8_0",
            "q4_0",
            "naive:k16v16",
            "oscar-plus:k2v2",
            "oscar-plus:k3v2",
            "quarot",
        ]
        options = [part for kv in kvs for part in ("--kv", kv)]
        for queries in ("1", "20"):
            document = self.results(
                "attention", "--shape", "4/2/64", "--depth", "100,700", "--rounds", "3",
                "--queries", queries, *options,
            )  # fmt: skip
            self.assertGreater(document["read_gigabytes_per_s"], 0)
            self.assertEqual(len(document["results"]), 2 * len(kvs))
            for row in document["results"]:
                self.check_spread(row["ns"])
                self.assertAlmostEqual(
                    row["ns_per_token_head"],
                    row["ns"]["median"] / (row["depth"] * 2 * int(queries)),
                    places=3,
                )
                # Both sides compute the attention that they are timed for.
                limit = {"q4_0": 0.3, "q8_0": 0.03}.get(row["kv"], 0.02)
                self.assertLess(row["relative_error"], limit, row)
        bytes_of = {row["kv"]: row["bytes"] for row in document["results"] if row["depth"] == 700}
        self.assertEqual(bytes_of["f16"], 700 * 2 * 2 * 64 * 2)
        self.assertEqual(bytes_of["quarot"] * 64, bytes_of["f16"] * 10)

    def test_encode(self):
        rows = self.results("encode", "--shape", "4/2/64", "--depth", "1,300", "--rounds", "3")
        for row in rows["results"]:
            self.check_spread(row["ns"])
            self.assertNotIn("relative_error", row)

    def test_an_interrupt_ends_a_bench(self):
        path = self.folder / "b.json"
        for name in ("attention", "encode"):
            # Hours.
            rounds = ["--depth", "20000", "--rounds", "100000", "--json", str(path)]
            out, err = self.interrupt(["bench", name, *LAYER, *rounds])
            self.assertEqual(err, [INTERRUPTED])
            self.assertEqual(out, [])
            self.assertFalse(path.exists())

    def test_a_second_signal_does_not_wait(self):
        command = ["bench", "encode", *LAYER, "--depth", "20000", "--rounds", "100000"]
        out, err = self.interrupt(command, signals=[signal.SIGINT, signal.SIGTERM])
        self.assertEqual(err, ["error: interrupted"])
        self.assertEqual(out, [])

    def progress_line(self, columns):
        """The first one that it shows on a terminal of that width; 0: the terminal does not say."""
        terminal, stderr = pty.openpty()
        self.addCleanup(os.close, terminal)
        fcntl.ioctl(stderr, termios.TIOCSWINSZ, struct.pack("4H", 24, columns, 0, 0))
        process = subprocess.Popen(
            [cli_case.program, "bench", "encode", *LAYER, "--rounds", "100000"],
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            env=self.environment,
        )
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        os.close(stderr)
        shown, erase = b"", b"\r\x1b[K"
        while shown.count(erase) < 2 and select.select([terminal], [], [], 60)[0]:
            shown += os.read(terminal, 4096)
        self.assertGreaterEqual(shown.count(erase), 2, shown)
        return shown.split(erase)[1].decode()

    def test_progress_fits_in_the_terminal(self):
        whole = r"^calls: \d+ of 200000, \d+:\d\d left$"
        self.assertRegex(self.progress_line(80), whole)
        self.assertRegex(self.progress_line(0), whole)
        self.assertRegex(self.progress_line(20), r"^calls: .{12}$")

    def test_bad_input(self):
        model = self.tiny()
        self.refused("bench", status=2)
        version = self.good("--version").out.splitlines()[-1]
        if version.startswith("CPU only"):
            # A GPU that is asked for by name: no run on the CPU instead.
            self.refused("bench", "cuda", names=["CUDA", version, "gpu_check"])
        self.refused("bench", "decode", status=2, names=["--model"])
        self.refused("bench", "decode", "-m", model, "--depth", "-1", status=2, names=["--depth"])
        self.refused("bench", "decode", "-m", model, "--depth", "4096", names=["4140", "2048"])
        # 44 tokens are decoded there.
        self.refused("bench", "decode", "-m", model, "--depth", "2048", names=["2092", "2048"])
        for shape in ("12", "12/5/128", "12/2/100", "0/0/0", "12/2/128/1", "a/b/c"):
            self.refused("bench", "attention", "--shape", shape, names=["--shape", shape])
        self.refused("bench", "attention", "--queries", "10", "--depth", "5", names=["10", "5"])
        artefact = self.write("a.safetensors", "x")
        self.refused("bench", "attention", "--kv", artefact, names=["artefact"])


if __name__ == "__main__":
    main()
