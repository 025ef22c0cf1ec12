"""The evaluations on a real model, with short contexts."""

import json
import unittest

from cli_case import REPOSITORY, CliTest, main, real_model


@unittest.skipUnless(real_model(), "no model: set OSCAR_TEST_MODEL to a GGUF file")
class RealModel(CliTest):
    def setUp(self):
        super().setUp()
        self.path = self.folder / "r.json"

    def measure(self, name, *more):
        self.good("eval", name, "-m", real_model(), *more, "--json", str(self.path))
        return json.loads(self.path.read_text())["results"]

    def heldout(self):
        return ["-f", str(REPOSITORY / "data" / "heldout.txt")]

    def test_needles_are_found(self):
        rows = self.measure(
            *("niah", "--ctx", "512", "--depths", "0,50,100", "--seeds", "1"),
            *("--form", "passkey", "--kv", "f16", "--kv", "naive:k16v16"),
        )
        # Guessing five digits in a row does not happen.
        self.assertGreaterEqual(rows[0]["right"], 1 / 3)
        self.assertEqual([row["asked"] for row in rows], [3, 3])
        self.assertGreaterEqual(rows[1]["share"], rows[0]["share"] - 0.2)

    def test_questions_are_answered(self):
        (row,) = self.measure("qa", "--ctx", "700", "--kv", "f16")
        self.assertGreaterEqual(row["asked"], 2)
        self.assertTrue(any(answer["right"] for answer in row["answers"]), row["answers"])

    def test_exact_keys_and_values_generate_the_same(self):
        rows = self.measure(
            *("generate", *self.heldout(), "--prompts", "1", "--prompt-tokens", "128", "-n", "16"),
            *("--kv", "naive:k16v16"),
        )
        self.assertEqual(rows[0]["foreign"], 0)
        self.assertGreater(rows[1]["overlap"]["1"], 0.5)

    def test_layers_and_windows(self):
        rows = self.measure(
            *("layers", *self.heldout(), "--ctx", "384", "--queries", "8"),
            *("--kv", "naive", "--kv", "quarot", "--kv", "quarot:k4v4"),
        )
        naive, two, four = (row["mean"]["output_relative"] for row in rows)
        self.assertLess(four, two)
        self.assertLess(two, naive)


if __name__ == "__main__":
    main()
