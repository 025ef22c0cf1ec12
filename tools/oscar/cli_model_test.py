"""The program on a real model, with short contexts."""

import json
import unittest

from cli_case import REPOSITORY, CliTest, main, real_model


@unittest.skipUnless(real_model(), "no model: set OSCAR_TEST_MODEL to a GGUF file")
class RealModel(CliTest):
    def test_exact_cache_is_as_close_as_flash_attention(self):
        path = self.folder / "r.json"
        text = str(REPOSITORY / "data" / "heldout.txt")
        self.good(
            "eval",
            "kl",
            "-m",
            real_model(),
            "-f",
            text,
            "--ctx",
            "512",
            "--kv",
            "naive:k16v16",
            "--kv",
            "quarot",
            "--json",
            str(path),
        )
        rows = {row["kv"]: row for row in json.loads(path.read_text())["results"]}
        floor = rows["f16:fa-off"]["kl"]["mean"]
        self.assertLessEqual(rows["naive:k16v16"]["kl"]["mean"], 2 * floor)
        self.assertGreater(rows["quarot"]["kl"]["mean"], 2 * floor)

    def test_calibrated_cache_beats_the_plain_rotation(self):
        artefact, path = str(self.folder / "a.safetensors"), self.folder / "r.json"
        self.good(
            "calibrate",
            "-m",
            real_model(),
            "-f",
            str(REPOSITORY / "data" / "calibration.txt"),
            "--tokens",
            "512",
            "-o",
            artefact,
        )
        windows = ":sink=16,recent=32"
        self.good(
            "eval",
            "kl",
            "-m",
            real_model(),
            "-f",
            str(REPOSITORY / "data" / "heldout.txt"),
            "--ctx",
            "512",
            "--kv",
            "quarot" + windows,
            "--kv",
            artefact + windows,
            "--json",
            str(path),
        )
        rows = {row["method"]: row for row in json.loads(path.read_text())["results"]}
        self.assertLess(rows["oscar-plus"]["kl"]["mean"], 0.5 * rows["quarot"]["kl"]["mean"])
        self.assertLessEqual(rows["oscar-plus"]["bits"], rows["quarot"]["bits"])

    def test_it_answers(self):
        for kv in ("f16", "naive:k16v16", "quarot"):
            result = self.good(
                "run",
                "-m",
                real_model(),
                "-p",
                "What is the capital of France?",
                "-n",
                "12",
                "--kv",
                kv,
            )
            self.assertIn("Paris", result.out)


if __name__ == "__main__":
    main()
