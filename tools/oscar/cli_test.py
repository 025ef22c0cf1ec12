"""The built program on good and on bad input, as a user types it.

Usage: cli_test.py OSCAR [unittest arguments]
OSCAR is the program. Small models with random weights are made here; tests on a real one need
OSCAR_TEST_MODEL or OSCAR_MODEL_DIR, and say why they are skipped when neither leads to it.
"""

import json
import os
import pathlib
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest

from tiny_gguf import ARRAY, STRING, TinyModel, UINT32, gguf_text, key

REAL_MODEL_FILE = "smollm2-135m-instruct-q4_1.gguf"
REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
MAX_BAD_INPUT_MIB = 200
oscar = ""


def real_model():
    named = os.environ.get("OSCAR_TEST_MODEL")
    folder = os.environ.get("OSCAR_MODEL_DIR")
    path = named or (os.path.join(folder, REAL_MODEL_FILE) if folder else "")
    return path if path and os.path.exists(path) else None


class Result:
    def __init__(self, status, out, err, peak_kib):
        self.status, self.out, self.err, self.peak_kib = status, out, err, peak_kib

    def __repr__(self):
        return f"status {self.status}\n{self.out}\n{self.err}"


class CliTest(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="oscar-cli-"))
        self.addCleanup(shutil.rmtree, self.folder)
        self.environment = dict(os.environ, OSCAR_CACHE_DIR=str(self.folder / "cache"))

    def write(self, name, data):
        path = self.folder / name
        path.write_bytes(data if isinstance(data, bytes) else data.encode())
        return str(path)

    def tiny(self, **fields):
        return self.write("tiny.gguf", TinyModel(**fields).bytes())

    def words(self, count):
        return " ".join(f"w{i % 97}" for i in range(count))

    def run_cli(self, *arguments, limits=None, stdout=subprocess.PIPE):
        # Two threads: enough for races, few enough for a small machine.
        process = subprocess.Popen(
            [oscar, *arguments], stdout=stdout, stderr=subprocess.PIPE, env=self.environment,
            preexec_fn=limits, cwd=self.folder)
        out, err = process.communicate(timeout=600)
        # ru_maxrss of children is that of the largest one so far; good as an upper bound.
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
        return Result(process.returncode, (out or b"").decode("utf-8", "replace"),
                      err.decode("utf-8", "replace"), peak)

    def good(self, *arguments):
        result = self.run_cli(*arguments)
        self.assertEqual(result.status, 0, result)
        return result

    def refused(self, *arguments, names=(), status=1, **options):
        """One line on stderr that begins with 'error: ' and has every one of `names`."""
        result = self.run_cli(*arguments, **options)
        self.assertEqual(result.status, status, result)
        lines = result.err.splitlines()
        self.assertEqual(len(lines), 1, result)
        self.assertTrue(lines[0].startswith("error: "), result)
        for name in names:
            self.assertIn(name, lines[0])
        return result

    def ask(self, model, *more):
        return ["run", "-m", model, "-p", "hello", "-n", "4", "-t", "2", "--no-chat", *more]


class Usage(CliTest):
    def test_help_and_version(self):
        self.assertIn("llama.cpp", self.good("--version").out)
        for command in (["calibrate"], ["inspect"], ["run"], ["eval", "kl"], ["eval", "ppl"], ["compare"]):
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
        self.refused("calibrate", "-m", "x", "--sample", "-o", "y", "--tokens", "10", status=2,
                     names=["--tokens"])
        self.refused("inspect", status=2, names=["FILE"])

    def test_names_that_are_none(self):
        model = self.tiny()
        self.refused(*self.ask(model, "--kv", "oskar"), names=["oskar", "oscar-plus", "quarot"])
        self.refused(*self.ask(model, "--kv", "quarot:k5v2"), names=["k5v2", "2, 3, 4, 16"])
        self.refused(*self.ask(model, "--kv", "quarot:group=48"), names=["group=48", "64"])
        self.refused(*self.ask(model, "--kv", "f16:k2v2"), names=["f16"])
        self.refused("calibrate", "-m", model, "--sample", "-o", "a", "--method", "oskar",
                     names=["oskar", "oscar-plus"])
        self.refused("calibrate", "-m", model, "--sample", "-o", "a", "--method", "quarot",
                     names=["quarot"])

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
        kvs = ["f16", "q8_0", "q4_0", "naive:k16v16", "quarot", "quarot:k3v2", "naive:k4v4,sink=0,recent=0"]
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
        self.assertEqual(self.good(*self.ask(model, *hot, "7")).out,
                         self.good(*self.ask(model, *hot, "7")).out)
        self.assertGreater(len({self.good(*self.ask(model, *hot, str(s))).out for s in range(5)}), 1)

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
            self.refused(*self.ask(model, "--kv", kv), names=["NaN"])
        self.refused("eval", "ppl", "-m", model, "-f", text, "--ctx", "64", "--kv", "quarot", names=["NaN"])
        output = self.folder / "a.safetensors"
        self.refused("calibrate", "-m", model, "-f", text, "--tokens", "512", "-o", str(output), names=["NaN"])
        self.assertFalse(output.exists())

    def test_missing_files(self):
        self.refused(*self.ask("none.gguf"), names=["none.gguf"])
        self.refused(*self.ask(str(self.folder)), names=[str(self.folder)])
        self.refused("run", "-m", self.tiny(), "-f", "none.txt", names=["none.txt"])
        self.refused("inspect", "none.safetensors", names=["none.safetensors"])


class HostileModels(CliTest):
    def refuse_model(self, data, *names):
        path = self.write("bad.gguf", data)
        result = self.refused(*self.ask(path), names=[path, *names])
        self.assertLess(result.peak_kib, MAX_BAD_INPUT_MIB << 10)

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
            self.refuse_model(self.one_key(key("general.alignment", UINT32, value)), "general.alignment")
        self.refuse_model(self.one_key(key("general.alignment", STRING, "32")), "general.alignment")
        wrong = gguf_text("general.alignment") + struct.pack("<IIQI", ARRAY, UINT32, 1, 32)
        self.refuse_model(self.one_key(wrong), "general.alignment")

    def test_versions(self):
        good = TinyModel().bytes()
        for version in (1, 2, 99):
            self.refuse_model(good[:4] + struct.pack("<I", version) + good[8:], f"version {version}")
        self.refuse_model(good[:4] + struct.pack(">I", 3) + good[8:], "big-endian")

    def test_a_shard_alone(self):
        model = TinyModel()
        model.extra_keys = [key("split.no", UINT32, 1), key("split.count", UINT32, 3)]
        self.refuse_model(model.bytes(), "shard 2 of 3")

    def test_cut_at_each_tenth(self):
        good = TinyModel(num_experts=4).bytes()
        for tenth in range(10):
            self.refuse_model(good[:len(good) * tenth // 10])

    def test_other_files(self):
        self.refuse_model(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
        self.refuse_model(b"<!DOCTYPE html><html></html>")
        self.refuse_model(b"")


class Calibration(CliTest):
    def calibrate(self, model, *texts, output="a.safetensors", more=()):
        files = [part for text in texts for part in ("-f", text)]
        return ["calibrate", "-m", model, *files, "-o", str(self.folder / output), "-t", "2", *more]

    def test_artefact_is_made_inspected_and_used(self):
        model = self.tiny()
        text = self.write("text.txt", self.words(3000))
        artefact, path = str(self.folder / "a.safetensors"), self.folder / "a.json"
        result = self.good(*self.calibrate(model, text, more=["--tokens", "600", "--json", str(path)]))
        self.assertIn("600 of 600 tokens", result.out)
        layers = json.loads(path.read_text())["layers"]
        self.assertEqual([layer["layer"] for layer in layers], [0, 1])
        self.assertIn("oscar-plus", self.good("inspect", artefact).out)
        self.good(*self.ask(model, "--kv", artefact, "--kv", artefact + ":k3v2,no-mean"))
        other = self.write("other.gguf", TinyModel(seed=2).bytes())
        self.refused(*self.ask(other, "--kv", artefact), names=[artefact, "weights"])
        self.refused(*self.ask(self.tiny(head_dim=32), "--kv", artefact), names=[artefact, "64", "32"])

    def test_shortfall_is_said_and_recorded(self):
        model = self.tiny()
        text = self.write("text.txt", self.words(400))
        path = self.folder / "a.json"
        result = self.good(*self.calibrate(model, text, more=["--tokens", "100000", "--json", str(path)]))
        info = json.loads(path.read_text())["info"]
        counts = f"{info['tokens_used']} of 100000 tokens"
        self.assertIn(counts, result.out)
        self.assertIn(counts, result.err)
        self.assertLess(int(info["tokens_used"]), 2000)
        self.assertEqual(info["tokens_asked"], "100000")

    def test_texts_that_cannot_be_used(self):
        model, output = self.tiny(), self.folder / "a.safetensors"
        output.write_bytes(b"precious")
        for name, data, reason in (("empty.txt", b"", "empty"), ("one.txt", b"a", "1 tokens"),
                                   ("short.txt", b"a" * 400, "512"),
                                   ("latin.txt", b"caf\xe9 " * 1000, "offset 3")):
            text = self.write(name, data)
            self.refused(*self.calibrate(model, text), names=[text, reason])
            self.assertEqual(output.read_bytes(), b"precious")

    def test_line_ends_and_one_long_line(self):
        model = self.tiny()
        crlf = self.write("crlf.txt", "\r\n".join([self.words(20)] * 100))
        self.good(*self.calibrate(model, crlf, more=["--tokens", "600"]))
        for name, piece in (("words.txt", b"word "), ("letters.txt", b"aaaaa")):
            long = self.write(name, piece * (10 << 20))
            start = time.monotonic()
            usage = resource.getrusage(resource.RUSAGE_CHILDREN)
            result = self.good(*self.calibrate(model, long, more=["--tokens", "600"]))
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            self.assertLess(result.peak_kib, MAX_BAD_INPUT_MIB << 10)
            self.assertLess(after.ru_utime - usage.ru_utime, 20, f"{time.monotonic() - start} s")

    def test_texts_share_the_tokens(self):
        model, path = self.tiny(), self.folder / "a.json"
        long = self.write("long.txt", self.words(3000))
        short = self.write("short.txt", "few words")
        self.good(*self.calibrate(model, long, short, more=["--tokens", "1000", "--json", str(path)]))
        info = json.loads(path.read_text())["info"]
        self.assertEqual((info["tokens_used"], info["text_files"]), ("1000", "long.txt, short.txt"))

    def test_full_disk_leaves_the_old_file(self):
        model, output = self.tiny(), self.folder / "a.safetensors"
        text = self.write("text.txt", self.words(3000))
        output.write_bytes(b"precious")

        def small_files():
            resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))

        self.refused(*self.calibrate(model, text, more=["--tokens", "512"]), limits=small_files,
                     names=[str(output)])
        self.assertEqual(output.read_bytes(), b"precious")
        self.assertEqual(sorted(path.name for path in self.folder.glob("*safetensors*")), ["a.safetensors"])

    def test_folders_that_are_none(self):
        model, text = self.tiny(), self.write("text.txt", self.words(3000))
        self.refused(*self.calibrate(model, text, output="no/such/folder/a"), names=["no/such/folder"])
        self.refused(*self.calibrate(model, text, output=""), names=["folder"])

    def test_an_interrupt_writes_nothing(self):
        model, output = self.tiny(), self.folder / "a.safetensors"
        output.write_bytes(b"precious")
        # 2048 tokens at a time, far more than a second's work.
        text = self.write("text.txt", self.words(2000000))
        process = subprocess.Popen(
            [oscar, *self.calibrate(model, text, more=["--tokens", "4000000"])],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=self.environment)
        time.sleep(1.5)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=120)
        self.assertEqual(process.returncode, 130, err)
        self.assertEqual(err.decode().splitlines(), ["error: interrupted; nothing was written"])
        self.assertEqual(output.read_bytes(), b"precious")
        self.assertEqual([path.name for path in self.folder.glob("*safetensors*")], ["a.safetensors"])

    def test_methods_without_a_file_calibrate_once(self):
        model = self.tiny()
        first = self.good(*self.ask(model, "--kv", "oscar-plus"))
        self.assertIn("calibrated", first.err)
        second = self.good(*self.ask(model, "--kv", "oscar-plus:k3v2"))
        self.assertNotIn("calibrated", second.err)
        kept = list((self.folder / "cache" / "artefacts").iterdir())
        self.assertEqual(len(kept), 1)
        self.assertIn(str(kept[0]), first.err)
        self.assertIn(str(kept[0]), second.err)

    def test_foreign_artefacts(self):
        model = self.tiny()
        for data in (b"", b"seven b", b"\xff" * 64, b"version https://git-lfs.github.com/spec/v1\n"):
            path = self.write("foreign.safetensors", data)
            self.refused(*self.ask(model, "--kv", path), names=[path])
            self.refused("inspect", path, names=[path])


class Evaluation(CliTest):
    def test_results_have_the_documented_shape(self):
        model, path = self.tiny(), self.folder / "r.json"
        text = self.write("text.txt", self.words(3000))
        self.good("eval", "kl", "-m", model, "-f", text, "--ctx", "256", "--windows", "2", "-t", "2",
                  "--kv", "f16", "--kv", "q8_0", "--kv", "naive:k16v16", "--kv", "quarot:recent=0,sink=0",
                  "--json", str(path))
        document = json.loads(path.read_text())
        self.assertLessEqual({"version", "host", "model", "text", "results"}, set(document))
        rows = {row["kv"]: row for row in document["results"]}
        self.assertEqual(list(rows), ["f16", "f16:fa-off", "q8_0", "naive:k16v16", "quarot:recent=0,sink=0"])
        for row in rows.values():
            self.assertLessEqual({"kv", "method", "bits", "kv_bytes", "ctx", "tokens", "ppl", "kl", "top1"}, set(row))
            self.assertEqual(set(row["kl"]), {"mean", "median", "trimmed10", "p99"})
            self.assertEqual((row["ctx"], row["tokens"]), (256, 2 * 127))
        self.assertEqual(rows["f16"]["kl"]["mean"], 0)
        self.assertEqual(rows["f16"]["top1"], 1)
        self.assertEqual(rows["naive:k16v16"]["bits"], 16)
        self.assertAlmostEqual(rows["quarot:recent=0,sink=0"]["bits"], 2.5)
        self.assertLess(rows["naive:k16v16"]["kl"]["mean"], rows["quarot:recent=0,sink=0"]["kl"]["mean"])

    def test_perplexity_is_that_of_the_comparison(self):
        model = self.tiny()
        text = self.write("text.txt", self.words(1000))
        files = {}
        for measure in ("kl", "ppl"):
            path = self.folder / f"{measure}.json"
            self.good("eval", measure, "-m", model, "-f", text, "--ctx", "128", "--kv", "f16", "--json", str(path))
            files[measure] = json.loads(path.read_text())["results"]
        self.assertAlmostEqual(files["kl"][0]["ppl"], files["ppl"][0]["ppl"], places=6)

    def test_lengths_that_do_not_fit(self):
        model = self.tiny()
        text = self.write("text.txt", "a" * 100)
        common = ["eval", "kl", "-m", model, "-f", text]
        self.refused(*common, "--ctx", "1024", names=[text, "100 tokens", "1024"])
        self.refused(*common, "--ctx", "4096", names=["4096", "2048"])
        self.refused(*common, "--ctx", "4", status=2, names=["--ctx"])

    def test_results_that_cannot_be_written(self):
        model = self.tiny()
        text = self.write("text.txt", self.words(1000))
        target = self.folder / "r.json"
        target.write_text("precious")

        def small_files():
            resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))

        result = self.run_cli("eval", "kl", "-m", model, "-f", text, "--ctx", "64", "--json", str(target),
                              limits=small_files)
        self.assertEqual(result.status, 1, result)
        self.assertEqual(target.read_text(), "precious")
        with open("/dev/full", "w") as full:
            self.refused(*self.ask(model), stdout=full, names=["standard output"])

    def test_compare_prints_one_table(self):
        model, path = self.tiny(), self.folder / "r.json"
        text = self.write("text.txt", self.words(400))
        result = self.good("compare", "-m", model, "-f", text, "--question", "what?", "--expect", "42", "-n", "4",
                           "--kv", "f16", "--kv", "quarot", "--json", str(path))
        self.assertIn("wrong", result.out)
        document = json.loads(path.read_text())
        self.assertEqual([row["kv"] for row in document["results"]], ["f16", "quarot"])
        self.assertFalse(document["results"][0]["answer"]["right"])
        self.assertEqual(document["floor"]["kv"], "f16:fa-off")


@unittest.skipUnless(real_model(), f"no real model: OSCAR_TEST_MODEL is unset, and OSCAR_MODEL_DIR holds no {REAL_MODEL_FILE}")
class RealModel(CliTest):
    def test_exact_cache_is_as_close_as_flash_attention(self):
        path = self.folder / "r.json"
        text = str(REPOSITORY / "data" / "heldout.txt")
        self.good("eval", "kl", "-m", real_model(), "-f", text, "--ctx", "512", "--kv", "naive:k16v16", "--kv",
                  "quarot", "--json", str(path))
        rows = {row["kv"]: row for row in json.loads(path.read_text())["results"]}
        floor = rows["f16:fa-off"]["kl"]["mean"]
        self.assertLessEqual(rows["naive:k16v16"]["kl"]["mean"], 2 * floor)
        self.assertGreater(rows["quarot"]["kl"]["mean"], 2 * floor)

    def test_calibrated_cache_beats_the_plain_rotation(self):
        artefact, path = str(self.folder / "a.safetensors"), self.folder / "r.json"
        self.good("calibrate", "-m", real_model(), "-f", str(REPOSITORY / "data" / "calibration.txt"), "--tokens",
                  "512", "-o", artefact)
        windows = ":sink=16,recent=32"
        self.good("eval", "kl", "-m", real_model(), "-f", str(REPOSITORY / "data" / "heldout.txt"), "--ctx", "512",
                  "--kv", "quarot" + windows, "--kv", artefact + windows, "--json", str(path))
        rows = {row["method"]: row for row in json.loads(path.read_text())["results"]}
        self.assertLess(rows["oscar-plus"]["kl"]["mean"], 0.5 * rows["quarot"]["kl"]["mean"])
        self.assertLessEqual(rows["oscar-plus"]["bits"], rows["quarot"]["bits"])

    def test_it_answers(self):
        for kv in ("f16", "naive:k16v16", "quarot"):
            result = self.good("run", "-m", real_model(), "-p", "What is the capital of France?", "-n", "12", "--kv", kv)
            self.assertIn("Paris", result.out)


if __name__ == "__main__":
    oscar = os.path.abspath(sys.argv.pop(1))
    unittest.main(verbosity=2)
