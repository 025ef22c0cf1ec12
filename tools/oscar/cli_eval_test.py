"""oscar eval and compare."""

import json
import resource

from cli_case import INTERRUPTED, CliTest, main
from tiny_gguf import TinyModel


class Evaluation(CliTest):
    def test_results_have_the_documented_shape(self):
        model, path = self.tiny(), self.folder / "r.json"
        text = self.write("text.txt", self.words(3000))
        self.good(
            "eval",
            "kl",
            "-m",
            model,
            "-f",
            text,
            "--ctx",
            "256",
            "--windows",
            "2",
            "-t",
            "2",
            "--kv",
            "f16",
            "--kv",
            "q8_0",
            "--kv",
            "naive:k16v16",
            "--kv",
            "quarot:recent=0,sink=0",
            "--json",
            str(path),
        )
        document = json.loads(path.read_text())
        self.assertLessEqual({"version", "host", "model", "text", "results"}, set(document))
        rows = {row["kv"]: row for row in document["results"]}
        self.assertEqual(
            list(rows), ["f16", "f16:fa-off", "q8_0", "naive:k16v16", "quarot:recent=0,sink=0"]
        )
        self.assertIn("eval kl -m", document["command"])
        for row in rows.values():
            low, high = row["kl_ci95"]
            self.assertTrue(low <= row["kl"]["mean"] <= high, row)
            ranges = [(part["from"], part["to"]) for part in row["kl_by_position"]]
            self.assertEqual(ranges, [(0, 64), (64, 128), (128, 256)])
            self.assertLessEqual(
                {"kv", "method", "bits", "kv_bytes", "ctx", "tokens", "ppl", "kl", "top1"}, set(row)
            )
            self.assertEqual(set(row["kl"]), {"mean", "median", "trimmed10", "p99"})
            self.assertEqual((row["ctx"], row["tokens"]), (256, 2 * 127))
        self.assertEqual(rows["f16"]["kl"]["mean"], 0)
        self.assertEqual(rows["f16"]["top1"], 1)
        self.assertEqual(rows["naive:k16v16"]["bits"], 16)
        self.assertAlmostEqual(rows["quarot:recent=0,sink=0"]["bits"], 2.5)
        self.assertLess(
            rows["naive:k16v16"]["kl"]["mean"], rows["quarot:recent=0,sink=0"]["kl"]["mean"]
        )

    def test_perplexity_is_that_of_the_comparison(self):
        model = self.tiny()
        text = self.write("text.txt", self.words(1000))
        files = {}
        for measure in ("kl", "ppl"):
            path = self.folder / f"{measure}.json"
            self.good(
                "eval",
                measure,
                "-m",
                model,
                "-f",
                text,
                "--ctx",
                "128",
                "--kv",
                "f16",
                "--json",
                str(path),
            )
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
        before = '{"version": "0.1.0", "precious": 1}'
        target.write_text(before)

        def small_files():
            resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))

        result = self.run_cli(
            "eval",
            "kl",
            "-m",
            model,
            "-f",
            text,
            "--ctx",
            "64",
            "--json",
            str(target),
            limits=small_files,
        )
        self.assertEqual(result.status, 1, result)
        self.assertEqual(target.read_text(), before)
        with open("/dev/full", "w") as full:
            self.refused(*self.ask(model), stdout=full, names=["standard output"])

    def test_an_interrupt_ends_an_evaluation(self):
        model = self.tiny()
        text = self.write("text.txt", self.words(2000000))
        command = ["eval", "kl", "-m", model, "-f", text, "--ctx", "2048", "--windows", "1000"]
        out, err = self.interrupt([*command, "-t", "2"])
        self.assertEqual(out, [])
        self.assertEqual(err, [INTERRUPTED])

    def test_an_interrupted_evaluation_goes_on(self):
        model, path = self.tiny(), self.folder / "r.json"
        state = self.folder / "r.json.state"
        text = self.write("text.txt", self.words(200000))
        command = ["eval", "kl", "-m", model, "-f", text, "--ctx", "64", "-t", "1"]
        command += ["--kv", "quarot", "--windows", "600", "--json"]
        out, err = self.interrupt([*command, str(path)], when=state.exists)
        self.assertEqual(out, [])
        self.assertEqual(len(err), 1, err)
        self.assertFalse(path.exists())
        self.assertIn(f"of 600 windows are kept in {state}", err[0])
        other = self.write("other.gguf", TinyModel(seed=2).bytes())
        changed = [other if word == model else word for word in command]
        self.refused(*changed, str(path), names=[str(state), "another model"])
        self.refused(*command, str(path), "--kv", "naive", names=[str(state), "another --kv"])

        # What a run without an interruption gives, and nothing is left behind.
        result = self.good(*command, str(path))
        self.assertIn("goes on with an interrupted run", result.err)
        self.assertFalse(state.exists())
        whole = self.folder / "whole.json"
        self.assertEqual(self.good(*command, str(whole)).err, "")
        documents = [json.loads(file.read_text()) for file in (path, whole)]
        for row in (row for document in documents for row in document["results"]):
            del row["decode_seconds"]
        self.assertEqual(documents[0]["results"], documents[1]["results"])

    def test_divergence_says_where(self):
        text = self.write("text.txt", self.words(400))
        broken = self.tiny(broken_weight="blk.1.ffn_down.weight")
        command = ["-f", text, "--ctx", "128", "-t", "1"]
        self.refused(
            *("eval", "kl", "-m", broken, *command),
            names=["--kv f16", "NaN or Inf", "layer 1, token 0"],
        )
        broken = self.tiny(broken_weight="output.weight")
        self.refused(
            *("eval", "ppl", "-m", broken, *command, "--kv", "quarot"),
            names=["--kv quarot", "the outputs of all layers are finite"],
        )
        broken = self.tiny(broken_weight="blk.1.attn_k.weight")
        self.refused(
            *("eval", "ppl", "-m", broken, *command, "--kv", "quarot"),
            names=["--kv quarot", "layer 1", "keys"],
        )

    def test_compare_prints_one_table(self):
        model, path = self.tiny(), self.folder / "r.json"
        text = self.write("text.txt", self.words(400))
        result = self.good(
            "compare",
            "-m",
            model,
            "-f",
            text,
            "--question",
            "what?",
            "--expect",
            "42",
            "-n",
            "4",
            "--kv",
            "f16",
            "--kv",
            "quarot",
            "--json",
            str(path),
        )
        self.assertIn("wrong", result.out)
        document = json.loads(path.read_text())
        self.assertEqual([row["kv"] for row in document["results"]], ["f16", "quarot"])
        self.assertFalse(document["results"][0]["answer"]["right"])
        self.assertEqual(document["floor"]["kv"], "f16:fa-off")


if __name__ == "__main__":
    main()
