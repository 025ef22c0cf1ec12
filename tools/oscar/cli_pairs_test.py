"""Every accepted pair of key and value types is attended by our kernels; others are refused.

A pair without a kernel may not end in attention that another device computes on decoded rows:
that is right, many times slower, and nothing says so.
"""

import json
import os
import unittest

from cli_case import CliTest, main

LAYERS, PROMPT, NEW = 2, 530, 4
BITS = (2, 3, 4, 16)
PAIRS = [f"k{keys}v{values}" for keys in BITS for values in BITS]
# Other methods that bring keys and values of their own kinds.
METHODS = ("naive:k2v2,float", "kivi", "kitty", "saw-int4", "omniscale")


class Pairs(CliTest):
    def setUp(self):
        super().setUp()
        self.environment["OSCAR_LOG"] = "1"

    def answers(self, model, kvs, new=NEW):
        path = self.folder / "run.json"
        options = [part for kv in kvs for part in ("--kv", kv)]
        result = self.good(
            "run", "-m", model, "-p", "a" * PROMPT, "-n", str(new), "-t", "2", "--no-chat",
            *options, "--json", str(path),
        )  # fmt: skip
        return result, json.loads(path.read_text())["results"]

    def check(self, head_dim, kvs):
        result, answers = self.answers(self.tiny(head_dim=head_dim), kvs)
        self.assertEqual([answer["kv"] for answer in answers], kvs)
        for answer in answers:
            tokens = answer["prompt_tokens"]
            self.assertGreaterEqual(tokens, PROMPT)
            # One operation a layer for each batch of at most 512 tokens, and for each new token
            # that is attended: the last one is not.
            batches = -(-tokens // 512) + max(answer["new_tokens"] - 1, 0)
            self.assertEqual(answer["attention_by_plugin"] % LAYERS, 0, answer)
            self.assertGreaterEqual(answer["attention_by_plugin"], LAYERS * batches, answer)
            self.assertEqual(answer["attention_elsewhere"], 0, answer)
        # One line a cache: the kernels, and the device that runs them.
        lines = [line for line in result.err.splitlines() if "kernels on the CPU (OSCAR0)" in line]
        self.assertEqual(len(lines), len(kvs), result)

    def test_head_size_64(self):
        self.check(64, [f"quarot:{pair}" for pair in PAIRS])

    def test_head_size_128(self):
        self.check(128, [f"quarot:{pair}" for pair in PAIRS])

    def test_head_size_256(self):
        self.check(256, [f"quarot:{pair}" for pair in PAIRS])

    def test_head_sizes_between(self):
        for head_dim in (32, 80, 96, 112, 192):
            self.check(head_dim, ["quarot:k2v2", "quarot:k16v2", "quarot:k3v16"])

    def test_other_methods(self):
        self.check(64, list(METHODS))

    def test_the_kernels_that_are_named_are_used(self):
        for name in ("scalar", "avx2"):
            self.environment["OSCAR_CPU"] = name
            result = self.run_cli(*self.ask(self.tiny(), "--kv", "quarot:k16v2"))
            if result.status != 0 and f"'{name}'" in result.err:
                continue  # this processor lacks them, and that is said
            self.assertEqual(result.status, 0, result)
            self.assertIn(f"{name} kernels on the CPU (OSCAR0)", result.err)

    @unittest.skipIf(os.environ.get("OSCAR_SANITIZE"), "instrumented code is not timed")
    def test_a_prompt_takes_at_most_twice_f16s_time(self):
        """A pair without kernels of its own would take many times that. Rounds are interleaved."""
        kvs = [
            "f16",
            "naive:k16v16",
            *(f"quarot:{pair}" for pair in ("k2v2", "k3v2", "k16v2", "k4v16")),
        ]
        path = self.folder / "b.json"
        options = [part for kv in kvs for part in ("--kv", kv)]
        for head_dim in (64, 128, 256):
            self.good(
                "bench", "attention", "--shape", f"4/2/{head_dim}", "--depth", "1024",
                "--queries", "256", "--rounds", "7", *options, "--json", str(path),
            )  # fmt: skip
            rows = json.loads(path.read_text())["results"]
            # The quickest tenth: what else the machine does only makes calls slower.
            ns = {row["kv"]: row["ns"]["p10"] for row in rows}
            for kv in kvs:
                print(f"{kv}, head size {head_dim}: {ns['f16'] / ns[kv]:.2f} of f16's speed")
                self.assertLess(ns[kv], 2 * ns["f16"], (kv, head_dim))

    def test_pairs_that_are_refused(self):
        for kv, names in (
            ("quarot:k5v2", ["k5v2"]),
            ("quarot:k2v8", ["k2v8"]),
            ("quarot:k8v16", ["k8v16"]),
            ("q8_0:k2v2", ["q8_0"]),
            ("quarot:q8_0", ["q8_0"]),
            ("quarot,f16", ["quarot,f16"]),
        ):
            self.refused(*self.ask(self.tiny(), "--kv", kv), names=names)
        for head_dim in (48 + 8, 288):
            self.refused(
                *self.ask(self.tiny(head_dim=head_dim), "--kv", "quarot"), names=[str(head_dim)]
            )


if __name__ == "__main__":
    main()
