"""oscar calibrate: texts good and bad, artefacts, full disks, interrupts."""

import json
import re
import resource
import signal
import subprocess
import time

import cli_case
from cli_case import CliTest, main
from tiny_gguf import TinyModel

# Begins as an artefact does: what `-o` may replace.
OLD_HEADER = b'{"__metadata__":{"format":"oscar-artefact"}}'
OLD_ARTEFACT = len(OLD_HEADER).to_bytes(8, "little") + OLD_HEADER


class Calibration(CliTest):
    def calibrate(self, model, *texts, output="a.safetensors", more=()):
        files = [part for text in texts for part in ("-f", text)]
        return ["calibrate", "-m", model, *files, "-o", str(self.folder / output), "-t", "2", *more]

    def test_artefact_is_made_inspected_and_used(self):
        model = self.tiny()
        text = self.write("text.txt", self.words(3000))
        artefact, path = str(self.folder / "a.safetensors"), self.folder / "a.json"
        result = self.good(
            *self.calibrate(model, text, more=["--tokens", "600", "--json", str(path)])
        )
        self.assertIn("600 of 600 tokens", result.out)
        layers = json.loads(path.read_text())["layers"]
        self.assertEqual([layer["layer"] for layer in layers], [0, 1])
        self.assertIn("oscar-plus", self.good("inspect", artefact).out)
        self.good(*self.ask(model, "--kv", artefact, "--kv", artefact + ":k3v2,no-mean"))
        other = self.write("other.gguf", TinyModel(seed=2).bytes())
        self.refused(*self.ask(other, "--kv", artefact), names=[artefact, "weights"])
        self.refused(
            *self.ask(self.tiny(head_dim=32), "--kv", artefact), names=[artefact, "64", "32"]
        )

    def test_shortfall_is_said_and_recorded(self):
        model = self.tiny()
        text = self.write("text.txt", self.words(400))
        path = self.folder / "a.json"
        result = self.good(
            *self.calibrate(model, text, more=["--tokens", "100000", "--json", str(path)])
        )
        info = json.loads(path.read_text())["info"]
        counts = f"{info['tokens_used']} of 100000 tokens"
        self.assertIn(counts, result.out)
        self.assertIn(counts, result.err)
        self.assertLess(int(info["tokens_used"]), 2000)
        self.assertEqual(info["tokens_asked"], "100000")

    def test_texts_that_cannot_be_used(self):
        model, output = self.tiny(), self.folder / "a.safetensors"
        output.write_bytes(OLD_ARTEFACT)
        for name, data, reason in (
            ("empty.txt", b"", "empty"),
            ("one.txt", b"a", "1 tokens"),
            ("short.txt", b"a" * 400, "512"),
            ("latin.txt", b"caf\xe9 " * 1000, "offset 3"),
        ):
            text = self.write(name, data)
            self.refused(*self.calibrate(model, text), names=[text, reason])
            self.assertEqual(output.read_bytes(), OLD_ARTEFACT)

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
            self.assert_small(result)
            self.assertLess(after.ru_utime - usage.ru_utime, 20, f"{time.monotonic() - start} s")

    def test_texts_share_the_tokens(self):
        model, path = self.tiny(), self.folder / "a.json"
        long = self.write("long.txt", self.words(3000))
        short = self.write("short.txt", "few words")
        self.good(
            *self.calibrate(model, long, short, more=["--tokens", "1000", "--json", str(path)])
        )
        info = json.loads(path.read_text())["info"]
        self.assertEqual((info["tokens_used"], info["text_files"]), ("1000", "long.txt, short.txt"))

    def test_full_disk_leaves_the_old_file(self):
        model, output = self.tiny(), self.folder / "a.safetensors"
        text = self.write("text.txt", self.words(3000))
        output.write_bytes(OLD_ARTEFACT)

        def small_files():
            resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))

        self.refused(
            *self.calibrate(model, text, more=["--tokens", "512"]),
            limits=small_files,
            names=[str(output)],
        )
        self.assertEqual(output.read_bytes(), OLD_ARTEFACT)
        self.assertEqual(
            sorted(path.name for path in self.folder.glob("*safetensors*")), ["a.safetensors"]
        )

    def test_folders_that_are_none(self):
        model, text = self.tiny(), self.write("text.txt", self.words(3000))
        self.refused(
            *self.calibrate(model, text, output="no/such/folder/a"), names=["no/such/folder"]
        )
        self.refused(*self.calibrate(model, text, output=""), names=["folder"])

    def test_an_interrupt_writes_nothing(self):
        model, output = self.tiny(), self.folder / "a.safetensors"
        output.write_bytes(OLD_ARTEFACT)
        # 2048 tokens at a time, far more than a second's work.
        text = self.write("text.txt", self.words(2000000))
        process = subprocess.Popen(
            [cli_case.program, *self.calibrate(model, text, more=["--tokens", "4000000"])],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self.environment,
        )
        time.sleep(1.5)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=120)
        self.assertEqual(process.returncode, 130, err)
        self.assertEqual(
            err.decode().splitlines(), ["error: interrupted; no output file was written"]
        )
        self.assertEqual(output.read_bytes(), OLD_ARTEFACT)
        self.assertEqual(
            [path.name for path in self.folder.glob("*safetensors*")], ["a.safetensors"]
        )

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
        # What is missing is fitted from one pass; what is there stays.
        before = kept[0].read_bytes()
        options = ["--kv", "oscar", "--kv", "oscar-plus", "--kv", "rotatekv", "--kv", "oscar:k3v2"]
        third = self.good(*self.ask(model, *options))
        self.assertIn("oscar-plus uses", third.err)
        for method in ("oscar", "rotatekv"):
            self.assertEqual(third.err.count(f"{method}: calibrated on"), 1, third.err)
        names = sorted(path.name.split("-", 1)[1] for path in kept[0].parent.iterdir())
        self.assertEqual(
            names, ["oscar-plus.safetensors", "oscar.safetensors", "rotatekv.safetensors"]
        )
        self.assertEqual(kept[0].read_bytes(), before)

    def test_bits_go_where_they_count(self):
        model, artefact = self.tiny(), str(self.folder / "a.safetensors")
        text, path = self.write("text.txt", self.words(3000)), self.folder / "a.json"
        self.good(
            *self.calibrate(
                model, text, more=["--tokens", "1100", "--bits", "2.75", "--json", str(path)]
            )
        )
        document = json.loads(path.read_text())
        self.assertEqual(document["info"]["bits.budget"], "2.75")
        self.assertEqual(document["info"]["bits.stored"], "2.75")
        # Four sides of the same size at 2.25 bits: a step of one of them is a quarter of a bit.
        layers = document["layers"]
        bits = {
            (layer["layer"], side): layer[f"{side}_bits"] for layer in layers for side in ("k", "v")
        }
        self.assertEqual(sum(bits.values()), 4 * 2 + 2)
        losses = {
            (layer["layer"], side): layer[f"{side}_losses"]
            for layer in layers
            for side in ("k", "v")
        }
        for side, loss in losses.items():
            self.assertEqual(sorted(loss, reverse=True), loss, side)
            self.assertGreater(loss[0], 0, side)
        # What was bought gains at least as much as the next step of a side that got nothing.
        gained = [loss[0] - loss[bits[side] - 2] for side, loss in losses.items() if bits[side] > 2]
        missed = [loss[0] - loss[1] for side, loss in losses.items() if bits[side] == 2]
        self.assertGreaterEqual(max(gained), max(missed))
        self.assertIn("V loss at 2", self.good("inspect", artefact).out)

        kvs = [artefact, artefact + ":bits=3", artefact + ":k3v2"]
        run = self.folder / "run.json"
        options = [part for kv in kvs for part in ("--kv", kv)]
        self.good(*self.ask(model, *options, "--json", str(run)))
        self.refused(*self.ask(model, "--kv", artefact + ":bits=2.1"), names=["2.1", "2.25"])

    def test_budgets_that_cannot_be_had(self):
        model, text = self.tiny(), self.write("text.txt", self.words(3000))
        for more, names in (
            (["--bits", "2.1"], ["2.1", "at least 2.25"]),
            (["--ablation", "no-v"], ["ablation", "'no-v'", "no-u"]),
            (["--bits", "3", "--method", "rotatekv"], ["rotatekv", "same bits"]),
            (["--bits", "3", "--tokens", "1000"], ["--tokens 1000", "1024"]),
        ):
            self.refused(*self.calibrate(model, text, more=more), names=names)
        self.refused(
            *self.calibrate(model, text, more=["--bits", "nan"]), names=["--bits", "nan"], status=2
        )
        self.good(*self.calibrate(model, text, more=["--tokens", "600"]))
        plain = str(self.folder / "a.safetensors")
        self.refused(*self.ask(model, "--kv", plain + ":bits=3"), names=[plain, "no losses"])

    def test_parts_are_left_out(self):
        model, path = self.tiny(), self.folder / "a.json"
        text = self.write("text.txt", self.words(3000))
        for part in ("no-u", "no-p", "target=raw", "per-layer", "no-p,per-layer"):
            more = ["--tokens", "600", "--method", "oscar", "--ablation", part, "--json", str(path)]
            self.good(*self.calibrate(model, text, more=more))
            self.assertEqual(json.loads(path.read_text())["info"]["fit.ablation"], part)
        for part, names in (
            ("no-x", ["'no-x'", "no-u, no-p, target=raw, per-layer"]),
            ("no-u,target=raw", ["no-u", "target=raw"]),
        ):
            self.refused(*self.calibrate(model, text, more=["--ablation", part]), names=names)

    def test_trellis_codes(self):
        model, text = self.tiny(), self.write("text.txt", self.words(2000))
        for more, names in (
            (["--method", "oscar"], ["oscar ", "legal: oscar-plus"]),
            (["--bits", "2.5", "--tokens", "1100"], ["--trellis", "--bits"]),
        ):
            self.refused(*self.calibrate(model, text, more=["--trellis", *more]), names=names)
        self.good(*self.calibrate(model, text, more=["--tokens", "600", "--trellis"]))
        artefact = str(self.folder / "a.safetensors")
        self.assertIn("trellis", self.good("inspect", artefact).out)
        self.good(*self.ask(model, "--kv", artefact, "--kv", artefact + ":k2v16,float"))
        for options, names in (
            ("k3v2", ["keys have 3 bits"]),
            ("k2v4", ["values have 4 bits"]),
            ("trellis,k16v16", ["leave the option out"]),
        ):
            spec = artefact + ":" + options
            self.refused("plan", "-m", model, "--kv", spec, names=["trellis", *names])
        self.refused("plan", "-m", model, "--kv", "quarot:trellis", names=["quarot", "zero points"])

    def test_foreign_artefacts(self):
        model = self.tiny()
        for data in (
            b"",
            b"seven b",
            b"\xff" * 64,
            b"version https://git-lfs.github.com/spec/v1\n",
        ):
            path = self.write("foreign.safetensors", data)
            self.refused(*self.ask(model, "--kv", path), names=[path])
            self.refused("inspect", path, names=[path])

    def test_artefact_under_another_methods_name(self):
        model, text = self.tiny(), self.write("text.txt", self.words(2000))
        self.good(*self.calibrate(model, text, more=["--tokens", "600"]))
        made = (self.folder / "a.safetensors").read_bytes()
        self.assertEqual(made.count(b"oscar-plus"), 1)
        renamed = made.replace(b"oscar-plus", b"turboquant")
        path = self.write("renamed.safetensors", renamed)
        damaged = self.refused("inspect", path, names=["hash", "edited"])
        found, recorded = re.search(r"has hash (\w{32}), not '(\w{32})'", damaged.err).groups()
        path = self.write("signed.safetensors", renamed.replace(recorded.encode(), found.encode()))
        for command in (["inspect", path], self.ask(model, "--kv", path)):
            self.refused(*command, names=["turboquant", "symmetric", "another method's"])


if __name__ == "__main__":
    main()
