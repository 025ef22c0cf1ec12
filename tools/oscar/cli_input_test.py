"""The program's options, and models good, foreign and hostile."""

import json
import os
import pathlib
import struct

from cli_case import CliTest, main
from tiny_gguf import ARRAY, STRING, UINT32, TinyModel, gguf_text, key


class Usage(CliTest):
    def test_help_and_version(self):
        self.assertIn("llama.cpp", self.good("--version").out)
        for command in (
            ["calibrate"],
            ["inspect"],
            ["run"],
            ["eval", "kl"],
            ["eval", "ppl"],
            ["compare"],
        ):
            self.assertIn("oscar " + " ".join(command), self.good(*command, "--help").out)

    def test_wrong_usage(self):
        self.refused(status=2)
        self.refused("frobnicate", status=2, names=["frobnicate"])
        self.refused("run", "-m", "x", "-p", "y", "--frobnicate", status=2, names=["--frobnicate"])
        self.refused("run", "-p", "y", status=2, names=["--model"])
        self.refused("run", "-m", "x", status=2, names=["--prompt"])
        self.refused("run", "-m", "x", "-p", "y", "-n", "0", status=2, names=["--tokens"])
        self.refused("run", "-m", "x", "-p", "y", "--top-p", "1.5", status=2, names=["--top-p"])
        self.refused("calibrate", "-m", "x", "-o", "y", status=2, names=["--sample"])
        self.refused(
            "calibrate",
            "-m",
            "x",
            "--sample",
            "-o",
            "y",
            "--tokens",
            "10",
            status=2,
            names=["--tokens"],
        )
        self.refused("inspect", status=2, names=["FILE"])
        self.refused("eval", "frobnicate", status=2, names=["frobnicate", "kl", "ppl"])
        self.refused("plan", "--frobnicate", status=2, names=["--frobnicate"])
        for seed in ("-1", "4294967295", "4294967296"):
            usage = self.refused(*self.ask("x", "--seed", seed), status=2, names=["--seed", seed])
            self.assertIn("4294967294", usage.err)

    def test_empty_values(self):
        compare = ["compare", "-m", "x", "-f", "y"]
        for option, command in (
            ("--file", ["run", "-m", "x", "-f", ""]),
            ("--prompt", ["run", "-m", "x", "-p", ""]),
            ("--model", ["plan", "-m", ""]),
            ("--memory", ["plan", "-m", "x", "--memory", ""]),
            ("--question", [*compare, "--question", "", "--expect", "z"]),
            ("--expect", [*compare, "--question", "z", "--expect", ""]),
            ("--output", ["calibrate", "-m", "x", "--sample", "-o", ""]),
        ):
            self.refused(*command, status=2, names=[option + ": is empty"])

    def test_numbers_are_decimal(self):
        for option, value, command in (
            ("--ctx", "0512", ["eval", "ppl", "-m", "x", "-f", "y"]),
            ("--threads", "0x2", ["run", "-m", "x", "-p", "y"]),
            ("--tokens", "+02000", ["calibrate", "-m", "x", "-f", "y", "-o", "z"]),
        ):
            text = f"{option}: {value} is no decimal number"
            self.refused(*command, f"{option}={value}", status=2, names=[text])

    def test_questions_are_text(self):
        command = ["compare", "-m", "x", "-f", "y", "--expect", "z", "--question", b"a\xff"]
        self.refused(*command, names=["--question", "UTF-8", "offset 1"])

    def test_names_that_are_none(self):
        model = self.tiny()
        self.refused(*self.ask(model, "--kv", "oskar"), names=["oskar", "oscar-plus", "quarot"])
        self.refused(*self.ask(model, "--kv", "quarot:k5v2"), names=["k5v2", "2, 3, 4, 16"])
        self.refused(*self.ask(model, "--kv", "quarot:group=48"), names=["group=48", "64"])
        self.refused(*self.ask(model, "--kv", "f16:k2v2"), names=["f16"])
        self.refused(
            "calibrate",
            "-m",
            model,
            "--sample",
            "-o",
            "a",
            "--method",
            "oskar",
            names=["oskar", "oscar-plus"],
        )
        self.refused(
            "calibrate", "-m", model, "--sample", "-o", "a", "--method", "quarot", names=["quarot"]
        )

    def test_options_of_methods_are_judged_before_calibration(self):
        model = self.tiny()
        self.refused(*self.ask(model, "--kv", "oscar:group=48"), names=["group=48", "64"])
        self.assertFalse((self.folder / "cache").exists())

    def test_numbers_that_are_none(self):
        for option in ("--temp", "--top-p"):
            self.refused(*self.ask(self.tiny(), option, "nan"), status=2, names=[option, "nan"])

    def test_outputs_replace_nothing_else(self):
        model = self.tiny()
        text = self.write("text.txt", self.words(700))
        artefact = ["calibrate", "-m", model, "-f", text, "--tokens", "512"]
        before = {path: pathlib.Path(path).read_bytes() for path in (model, text)}
        for path in (model, text):
            self.refused(*artefact, "-o", path, names=[path, "will not replace"])
            self.refused(*self.ask(model, "--json", path), status=2, names=[path])
        good = str(self.folder / "a.safetensors")
        self.refused(*artefact, "-o", good, "--json", good, names=[good, "two files"])
        self.good(*artefact, "-o", good)
        self.good(*artefact, "-o", good)
        before[good] = pathlib.Path(good).read_bytes()
        self.refused("inspect", good, "--json", good, status=2, names=[good])
        for foreign in ("[note] mine", '{"mine": 1}', '{"version": 1}'):
            path = self.write("foreign.json", foreign)
            before[path] = foreign.encode()
            plan = ["plan", "-m", model, "--kv", "f16", "--json", path]
            self.refused(*plan, status=2, names=[path, "results of this program"])
        for path, data in before.items():
            self.assertEqual(pathlib.Path(path).read_bytes(), data)
        own = str(self.folder / "own.json")
        for _ in range(2):
            self.good("plan", "-m", model, "--kv", "f16", "--json", own)
            self.good("inspect", good, "--json", own)

    def test_outputs_that_cannot_be_written_are_found_first(self):
        for path in ("/dev/null", "/proc/x", "/nonexistent/r.json", str(self.folder)):
            # The model is missing too; the output is named, as no model was opened.
            self.refused("run", "-m", "x", "-p", "y", "--json", path, status=2, names=["--json"])
            self.refused("calibrate", "-m", "x", "--sample", "-o", path, names=[f"'{path}'"])

    def test_standard_output_that_cannot_be_written(self):
        """Whether or not it was flushed before the end."""
        text, artefact = self.write("text.txt", self.words(700)), str(self.folder / "a")
        self.good("calibrate", "-m", self.tiny(), "-f", text, "--tokens", "512", "-o", artefact)
        path = self.folder / "r.json"
        inspect = ["inspect", artefact, "--json", str(path)]
        message = "cannot write to standard output"
        for command in (["--version"], ["--help"], inspect, ["inspect", "--kernels"]):
            with open("/dev/full", "w") as full:
                self.refused(*command, stdout=full, names=[message])
            self.refused(*command, stdout=None, limits=lambda: os.close(1), names=[message])
            if command == inspect:
                self.assertTrue(json.loads(path.read_text())["version"])

    def test_a_fifo_is_no_model(self):
        path = str(self.folder / "fifo.gguf")
        os.mkfifo(path)
        self.refused(*self.ask(path), names=[path, "no regular file"])

    def test_nul_is_no_text(self):
        path = self.write("prompt.txt", b"one\0two")
        self.refused("run", "-m", self.tiny(), "-f", path, names=[path, "offset 3", "NUL"])

    def test_kernels_are_listed(self):
        path = self.folder / "kernels.json"
        result = self.good("inspect", "--kernels", "--json", str(path))
        self.assertIn("scalar", result.out)
        kernels = json.loads(path.read_text())["kernels"]
        self.assertEqual(sum(entry["selected"] for entry in kernels), 1)
        self.environment["OSCAR_CPU"] = "abacus"
        self.refused("inspect", "--kernels", names=["abacus", "scalar"])


class Models(CliTest):
    def test_answers_with_every_kind_of_cache(self):
        model, path = self.tiny(), self.folder / "r.json"
        kvs = [
            "f16",
            "q8_0",
            "q4_0",
            "naive:k16v16",
            "quarot",
            "quarot:k3v2",
            "naive:k4v4,sink=0,recent=0",
        ]
        options = [part for kv in kvs for part in ("--kv", kv)]
        self.good(*self.ask(model, *options, "--json", str(path)))
        results = json.loads(path.read_text())["results"]
        self.assertEqual([result["kv"] for result in results], kvs)
        self.assertEqual(results[0]["bits"], 16)
        # 2 layers x 2 KV heads x (64 + 64) channels x 2 bytes for every token in the cache.
        cells = results[0]["prompt_tokens"] + results[0]["new_tokens"] - 1
        self.assertEqual(results[0]["kv_bytes"], cells * 2 * 2 * 128 * 2)
        self.assertEqual(results[1]["kv_bytes"], results[0]["kv_bytes"] * 34 // 64)
        # 4 bits and, each 64 channels, a scale and a zero point of 16 bits.
        self.assertAlmostEqual(results[-1]["bits"], 4.5)

    def test_models_with_experts_load(self):
        self.good(*self.ask(self.tiny(num_experts=4), "--kv", "f16", "--kv", "quarot"))

    def test_greedy_answers_repeat_and_seeds_matter(self):
        model = self.tiny()
        first = self.good(*self.ask(model)).out
        self.assertEqual(first, self.good(*self.ask(model)).out)
        hot = ["--temp", "5", "--top-k", "0", "--top-p", "1", "--seed"]
        self.assertEqual(
            self.good(*self.ask(model, *hot, "7")).out, self.good(*self.ask(model, *hot, "7")).out
        )
        self.assertGreater(
            len({self.good(*self.ask(model, *hot, str(s))).out for s in range(5)}), 1
        )

    def test_what_a_model_cannot_do(self):
        model = self.tiny()
        self.refused(*self.ask(model, "--ctx", "2049"), names=["2049", "2048"])
        self.refused(*self.ask(model, "--ctx", "8"), names=["--ctx 8"])
        self.refused(*self.ask(self.tiny(head_dim=24), "--kv", "quarot"), names=["head size 24"])
        self.good(*self.ask(self.tiny(head_dim=24), "--kv", "f16"))
        self.refused("run", "-m", model, "--chat", "-p", "x", names=["--no-chat"])

    def test_broken_weights_are_seen(self):
        model = self.tiny(broken_weight="blk.1.attn_k.weight")
        text = self.write("text.txt", self.words(2000))
        for kv in ("f16", "quarot", "naive:k16v16"):
            self.refused(*self.ask(model, "--kv", kv), names=[f"error: {model}: ", "NaN"])
        self.refused(
            "eval", "ppl", "-m", model, "-f", text, "--ctx", "64", "--kv", "quarot", names=["NaN"]
        )
        output = self.folder / "a.safetensors"
        self.refused(
            "calibrate",
            "-m",
            model,
            "-f",
            text,
            "--tokens",
            "512",
            "-o",
            str(output),
            names=["NaN"],
        )
        self.assertFalse(output.exists())

    def test_a_vocabulary_without_the_prompt(self):
        model = TinyModel()
        model.tokens = [token for token in model.tokens if token not in "hello"]
        path = self.write("tiny.gguf", model.bytes())
        reason = "its vocabulary makes no token of the prompt"
        self.refused(*self.ask(path), names=[f"error: {path}: {reason}"])

    def test_missing_files(self):
        self.refused(*self.ask("none.gguf"), names=["none.gguf"])
        self.refused(*self.ask(str(self.folder)), names=[str(self.folder)])
        self.refused("run", "-m", self.tiny(), "-f", "none.txt", names=["none.txt"])
        self.refused("inspect", "none.safetensors", names=["none.safetensors"])


class HostileModels(CliTest):
    def refuse_model(self, data, *names):
        path = self.write("bad.gguf", data)
        result = self.refused(*self.ask(path), names=[path, *names])
        self.assert_small(result)

    def one_key(self, data):
        return b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + data

    def one_tensor(self, dims, name=b"odd.weight"):
        data = b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + gguf_text(name)
        return data + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, 0, 0) + bytes(256)

    def test_dimensions(self):
        for dims in ([0, 4], [2**63 - 1, 2], [1] * 5):
            self.refuse_model(self.one_tensor(dims), "odd.weight")
        million = b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + gguf_text("odd.weight")
        self.refuse_model(million + struct.pack("<I", 1000000) + bytes(64), "odd.weight", "1000000")

    def test_counts_and_keys(self):
        self.refuse_model(b"GGUF" + struct.pack("<IQQ", 3, 2**60, 0), str(2**60))
        self.refuse_model(self.one_key(struct.pack("<Q", 0) + bytes(32)), "key 0")
        self.refuse_model(self.one_key(struct.pack("<Q", 2**63) + bytes(32)), "key 0")

    def test_alignment(self):
        for value in (0, 3):
            self.refuse_model(
                self.one_key(key("general.alignment", UINT32, value)), "general.alignment"
            )
        self.refuse_model(self.one_key(key("general.alignment", STRING, "32")), "general.alignment")
        wrong = gguf_text("general.alignment") + struct.pack("<IIQI", ARRAY, UINT32, 1, 32)
        self.refuse_model(self.one_key(wrong), "general.alignment")

    def test_versions(self):
        good = TinyModel().bytes()
        for version in (1, 2, 99):
            self.refuse_model(
                good[:4] + struct.pack("<I", version) + good[8:], f"version {version}"
            )
        self.refuse_model(good[:4] + struct.pack(">I", 3) + good[8:], "big-endian")

    def test_a_shard_alone(self):
        model = TinyModel()
        model.extra_keys = [key("split.no", UINT32, 1), key("split.count", UINT32, 3)]
        self.refuse_model(model.bytes(), "shard 2 of 3")

    def test_cut_at_each_tenth(self):
        good = TinyModel(num_experts=4).bytes()
        for tenth in range(10):
            self.refuse_model(good[: len(good) * tenth // 10])

    def test_other_files(self):
        self.refuse_model(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
        self.refuse_model(b"<!DOCTYPE html><html></html>")
        self.refuse_model(b"")


if __name__ == "__main__":
    main()
