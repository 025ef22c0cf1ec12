"""The report's logic: what belongs together, which number is shown, and that the page holds it.

Usage: report_test.py [unittest arguments]. The page itself needs matplotlib; without it these tests
check what is said.
"""

import html.parser
import importlib.util
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "oscar_report"))

import load  # noqa: E402
import samples  # noqa: E402


class Folder(unittest.TestCase):
    def setUp(self):
        holder = tempfile.TemporaryDirectory(prefix="oscar-report-")
        self.addCleanup(holder.cleanup)
        self.folder = pathlib.Path(holder.name)

    def put(self, name, document):
        (self.folder / name).write_text(json.dumps(document))

    def refused(self, *parts):
        with self.assertRaises(load.ReportError) as caught:
            load.load(self.folder)
        message = str(caught.exception)
        self.assertNotIn("\n", message)
        for part in parts:
            self.assertIn(part, message)


class Load(Folder):
    def test_files_get_letters_in_the_order_of_their_names(self):
        samples.write_all(self.folder)
        sources, unknown = load.load(self.folder)
        self.assertEqual([s.letter for s in sources], list("ABCDEFG"))
        self.assertEqual(sources[0].name, "compare.json")
        self.assertEqual(sources[0].measure, "compare")
        self.assertEqual(unknown, [])
        self.assertEqual(load.letters(28)[25:], ["Z", "AA", "AB"])

    def test_what_does_not_belong_together_is_refused_by_name(self):
        self.refused(str(self.folder), "holds no results")
        self.put("a.json", samples.kl())
        self.put("b.json", {**samples.qa(), "version": "0.2.0"})
        self.refused("different versions", "0.1.0 (a.json)", "0.2.0 (b.json)")
        self.put("b.json", {**samples.qa(), "model_hash": "ff"})
        self.refused("different models", "ff (b.json)")
        self.put("b.json", {**samples.qa(), "model": "other.gguf"})
        self.refused("different models", "other.gguf (b.json)")
        self.put("b.json", [1, 2])
        self.refused("b.json", "no result of oscar")
        (self.folder / "b.json").write_text("{")
        self.refused("b.json", "is no JSON")
        self.folder = self.folder / "missing"
        self.refused("missing", "is no folder")

    def test_results_without_a_measure_are_known_by_their_rows(self):
        old = samples.kl()
        del old["measure"], old["command"]
        self.assertEqual(load.measure_of(old), "kl")
        self.assertIsNone(load.measure_of({"version": "0.1.0", "layers": []}))
        self.put("a.json", old)
        self.put("artefact.json", {"version": "0.1.0", "layers": []})
        sources, unknown = load.load(self.folder)
        self.assertEqual([s.name for s in sources], ["a.json"])
        self.assertEqual(unknown, ["artefact.json"])


class Summary(Folder):
    def test_the_longest_context_is_shown_and_sweeps_stand_apart(self):
        self.put("a.json", samples.kl(1024))
        self.put("b.json", samples.kl(4096))
        self.put("c.json", samples.sweep())
        self.put("d.json", samples.niah())
        table = load.summary(load.load(self.folder)[0])
        self.assertEqual(list(table), ["f16", "f16:fa-off", "quarot", "oscar", "oscar-plus"])
        cell = table["oscar"]["kl"]
        self.assertEqual((cell.value, cell.source), (0.047, "B"))
        self.assertEqual(cell.interval, (0.047 * 0.9, 0.047 * 1.15))
        self.assertEqual(table["oscar"]["bits"].source, "B")
        self.assertEqual(table["oscar"]["niah"].source, "D")
        self.assertNotIn("niah", table["f16:fa-off"])

    def test_the_front_holds_what_nothing_beats(self):
        points = [("a", 2.0, 0.5), ("b", 2.0, 0.3), ("c", 3.0, 0.4), ("d", 4.0, 0.1)]
        self.assertEqual([p[0] for p in load.pareto_front(points)], ["b", "d"])


class Text(html.parser.HTMLParser):
    """The page's text, and every address that it points to."""

    def __init__(self, page):
        super().__init__()
        self.parts, self.addresses, self.open = [], [], []
        self.feed(page)
        self.text = "".join(self.parts)

    def handle_starttag(self, tag, attrs):
        self.addresses += [value for key, value in attrs if key in ("src", "href")]
        if tag not in ("meta", "img", "wbr"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, f"</{tag}> closes something else"

    def handle_data(self, data):
        self.parts.append(data)


class Page(Folder):
    def report(self, *more):
        page = self.folder / "report.html"
        program = str(HERE / "oscar_report")
        command = [sys.executable, "-B", program, str(self.folder), str(page), *more]
        return page, subprocess.run(command, capture_output=True, text=True, timeout=300)

    def test_an_empty_folder_is_one_line(self):
        page, result = self.report()
        self.assertEqual(result.returncode, 1)
        self.assertEqual(len(result.stderr.splitlines()), 1, result.stderr)
        self.assertTrue(result.stderr.startswith("error: "), result.stderr)
        self.assertFalse(page.exists())

    def test_other_files_are_not_replaced(self):
        samples.write_all(self.folder)
        for name, more in (("report.html", ["--no-pdf"]), ("report.pdf", [])):
            other = self.folder / name
            other.write_text("mine")
            _, result = self.report(*more)
            self.assertEqual(result.returncode, 1)
            self.assertIn(f"will not replace {other}", result.stderr)
            self.assertEqual(other.read_text(), "mine")
            other.unlink()

    def test_every_number_is_on_the_page(self):
        samples.write_all(self.folder)
        page, result = self.report("--no-pdf")
        if importlib.util.find_spec("matplotlib") is None:
            self.assertEqual(result.returncode, 1)
            self.assertIn("scripts/setup --report", result.stderr)
            self.assertEqual(len(result.stderr.splitlines()), 1, result.stderr)
            return
        self.assertEqual(result.returncode, 0, result.stderr)
        seen = Text(page.read_text())
        self.assertEqual(seen.open, [])
        for address in seen.addresses:  # nothing from outside
            self.assertTrue(address.startswith("data:"), address[:80])
        for row in samples.kl()["results"]:
            self.assertIn(row["kv"], seen.text)
            self.assertIn(f"{row['ppl']:.3f}", seen.text)
            self.assertIn(f"{row['kl']['mean']:.4f}", seen.text)
        for name, make in samples.ALL.items():
            self.assertIn(name, seen.text)
            self.assertIn(make()["command"], seen.text)
        for heading in ("Summary", "Bits against KL", "Sweeps", "Needles", "Layers", "Speed"):
            self.assertIn(heading, seen.text)
        self.assertIn("text <1>.txt", seen.text)
        again, _ = self.report("--no-pdf")
        self.assertEqual(Text(again.read_text()).addresses, seen.addresses)


if __name__ == "__main__":
    unittest.main(verbosity=1)
