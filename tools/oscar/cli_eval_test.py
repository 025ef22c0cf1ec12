"""oscar eval and compare."""

import json
import resource
import signal
import subprocess
import time

import cli_case
from cli_case import CliTest, main


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
        for row in rows.values():
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
        target.write_text('{"precious": 1}')

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
        self.assertEqual(target.read_text(), '{"precious": 1}')
        with open("/dev/full", "w") as full:
            self.refused(*self.ask(model), stdout=full, names=["standard output"])

    def test_an_interrupt_ends_an_evaluation(self):
        model, path = self.tiny(), self.folder / "r.json"
        text = self.write("text.txt", self.words(2000000))
        command = ["eval", "kl", "-m", model, "-f", text, "--ctx", "2048", "--windows", "1000"]
        process = subprocess.Popen(
            [cli_case.program, *command, "-t", "2", "--json", str(path)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self.environment,
        )
        time.sleep(1.5)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=120)
        self.assertEqual(process.returncode, 130, err)
        self.assertEqual(err.decode().splitlines(), ["error: interrupted; no file was written"])
        self.assertEqual(out, b"")
        self.assertFalse(path.exists())

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
