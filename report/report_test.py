"""The report's logic: what belongs together, which number is shown, and that the page holds it.

Usage: report_test.py [unittest arguments]. The page itself needs matplotlib; without it these tests
check what is said.
"""

import copy
import html.parser
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "oscar_report"))

import load  # noqa: E402
import page as page_module  # noqa: E402
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


HOSTILE = "</code><script>alert('$x_{')</script>&amp;"


def program():
    """__main__.py as a module; this test is __main__ itself."""
    spec = importlib.util.spec_from_file_location("program", HERE / "oscar_report/__main__.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def places(value, path=()):
    """(path, value) of every leaf."""
    if isinstance(value, dict | list):
        for key, one in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places(one, (*path, key))
    else:
        yield path, value


def replaced(document, path, value):
    changed = copy.deepcopy(document)
    holder = changed
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = value
    return changed


class Schema(Folder):
    def test_a_wrong_value_is_named_with_its_place(self):
        row = ("results", 3)
        for path, value, *parts in (
            (("version",), [1], "version is [1]; a version"),
            (("version",), 1, "version is 1; a version"),
            (("results",), 5, "results is 5; a list was expected"),
            (("results",), ["x"], 'results[0] is "x"; an object was expected'),
            (("results",), None, "results is null; a list was expected"),
            (("results",), [], "a list of at least 1 was expected"),
            ((*row, "ppl"), "x", 'results[3].ppl is "x"; a number was expected'),
            ((*row, "ppl"), float("nan"), "is no JSON", "NaN"),
            ((*row, "ppl"), True, "results[3].ppl is true; a number"),
            ((*row, "bits"), None, "results[3].bits is null; a number was expected"),
            ((*row, "kv"), 5, "results[3].kv is 5; the name of a cache"),
            ((*row, "kl_ci95"), 5, "results[3].kl_ci95 is 5; a list"),
            ((*row, "kl_ci95"), [1], "results[3].kl_ci95 is [1]; a list of 2"),
            ((*row, "kl", "mean"), 1e308, "results[3].kl.mean is 1e+308; a number from -1"),
            ((*row, "kv_bytes"), 10**400, "results[3].kv_bytes is 1000", "a whole number from 0"),
            ((*row, "ctx"), "x", 'results[3].ctx is "x"; a whole number'),
            (("model",), "\ud800", 'model is "\\ud800"; text of whole'),
            (("model",), ["x"], 'model is ["x"]; text was expected'),
            (("model_hash",), {}, "model_hash is {}; text was expected"),
            (("llama_cpp",), 5, "llama_cpp is 5; text was expected"),
            (("measure",), 5, "measure is 5; one of kl, ppl"),
        ):
            self.put("a.json", replaced(samples.kl(), path, value))
            self.refused(f"{self.folder / 'a.json'}: ", *parts)
        (self.folder / "a.json").write_text("[" * 100000)
        self.refused("a.json: is no result of oscar: it is nested too deeply")
        document = samples.kl()
        del document["results"][1]["top1"]
        self.put("a.json", document)
        self.refused("a.json: has no results[1].top1: it is of another version")

    def test_no_value_of_a_result_is_trusted(self):
        """Each leaf in turn is of each other kind: refused in one line, or not read."""
        for name, make in samples.ALL.items():
            document = make()
            document["results"] = document["results"][-1:]
            for path, _ in list(places(document))[:150]:
                for value in (None, [], {}, "x", -1e300, "\ud800"):
                    changed = replaced(document, path, value)
                    try:
                        load.check_document(changed)
                    except load.ReportError as error:
                        self.assertIn(str(path[0]), str(error))
                    except Exception as error:
                        self.fail(f"{name} {path} {value!r}: {error!r}")

    def test_files_that_cannot_be_read(self):
        os.mkfifo(self.folder / "a.json")
        self.refused("a.json: is no regular file")
        self.folder = ""
        self.refused("the folder's name is empty")


class Markup(unittest.TestCase):
    def test_what_is_not_html_is_escaped_wherever_it_is_put(self):
        for made in (
            page_module.text(HOSTILE),
            page_module.markup("<p>{}</p>", HOSTILE),
            page_module.joined([HOSTILE, "a"], HOSTILE),
            page_module.kv_html(HOSTILE),
            page_module.table([HOSTILE], [[HOSTILE, HOSTILE]], left=(1,)),
            page_module.figure(HOSTILE, HOSTILE, HOSTILE),
            page_module.titled(HOSTILE, HOSTILE, HOSTILE),
            page_module.section(HOSTILE, [HOSTILE]),
            page_module.cell_html(load.Cell(1, (HOSTILE, HOSTILE), HOSTILE), "{}"),
        ):
            self.assertIsInstance(made, page_module.Html)
            self.assertNotIn("<script", made.replace("<wbr>", ""))
        self.assertEqual(page_module.text("a\0\ud800b"), "a\ufffd\ufffdb")


class Outputs(Folder):
    def setUp(self):
        super().setUp()
        self.program = program()

    def ours(self, name="report.html"):
        path = self.folder / name
        path.write_text(page_module.HEAD + page_module.GENERATOR.replace("{}", "0.1.0") + "</head>")
        return path

    def test_only_pages_of_ours_are_recognised(self):
        self.assertTrue(self.program.is_ours(self.ours()))
        page = self.ours().read_text()
        other = self.folder / "mine.html"
        generator = page_module.GENERATOR.replace("{}", "0.1.0")
        for text in (
            "<p>my essay about the oscar report</p>",
            f"<p>{generator}</p>",
            "<!-- -->" + page,
            page_module.HEAD + "<title>oscar report</title>" + generator,
            page.replace("oscar report", "the oscar report"),
            "%PDF-1.7\n% oscar report 0.1.0\n%%EOF\n",
            self.program.pdf_mark("0.1.0"),
        ):
            other.write_text(text)
            self.assertFalse(self.program.is_ours(other), text)
            with self.assertRaisesRegex(load.ReportError, "will not replace"):
                self.program.Output(other)
        other.write_text("%PDF-1.7\n" + "x" * 5000 + "\n" + self.program.pdf_mark("0.1.0"))
        self.assertTrue(self.program.is_ours(other))

    def test_links_are_followed(self):
        target, link = self.ours("target.html"), self.folder / "link.html"
        target.chmod(0o640)
        link.symlink_to("target.html")
        output = self.program.Output(link)
        output.write(b"new")
        self.program.commit_all([output])
        self.assertTrue(link.is_symlink())
        self.assertEqual(target.read_text(), "new")
        self.assertEqual(target.stat().st_mode & 0o777, 0o640)
        link.unlink()
        link.symlink_to("link.html")
        with self.assertRaisesRegex(load.ReportError, "links lead nowhere"):
            self.program.Output(link)

    def test_both_files_or_none(self):
        page, pdf = self.folder / "new.html", self.folder / "new.pdf"
        outputs = [self.program.Output(page), self.program.Output(pdf)]
        for output in outputs:
            output.write(b"new")
        pdf.mkdir()
        (pdf / "x").touch()
        with self.assertRaisesRegex(load.ReportError, "cannot write .*new.pdf"):
            self.program.commit_all(outputs)
        self.program.remove_temporary_files()
        self.assertEqual([path.name for path in self.folder.iterdir()], ["new.pdf"])
        with self.assertRaisesRegex(load.ReportError, "it is a folder"):
            self.program.Output(pdf)

    @unittest.skipUnless(importlib.util.find_spec("weasyprint"), "needs WeasyPrint")
    def test_nothing_is_fetched_for_the_pdf(self):
        import weasyprint

        outside = self.folder / "outside.txt"
        outside.write_text("x")
        fetcher = self.program.only_data(weasyprint)
        for address in (outside.as_uri(), "http://127.0.0.1:9/x", "ftp://127.0.0.1/x"):
            with self.assertRaises(ValueError):
                fetcher.fetch(address)
        self.assertEqual(fetcher.fetch("data:text/plain,abc").read(), b"abc")


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
        self.parts, self.addresses, self.open, self.tags = [], [], [], set()
        self.feed(page)
        self.text = "".join(self.parts)

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
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

    def test_wrong_usage_is_one_line(self):
        command = [sys.executable, "-B", str(HERE / "oscar_report")]
        for more, status in (
            (["-x"], 2),
            ([], 2),
            (["--", "-x", "a.html"], 1),
            (["", "a.html"], 1),
            ([str(self.folder), "a.txt"], 1),
        ):
            result = subprocess.run(command + more, capture_output=True, text=True, timeout=300)
            self.assertEqual(result.returncode, status, result)
            self.assertRegex(result.stderr, r"\Aerror: [^\n]*\n\Z")

    def test_an_interruption_leaves_nothing(self):
        (self.folder / "slow").mkdir()
        code = (
            "import os, sys, time, signal, importlib.util as u\n"
            f"sys.path.insert(0, {str(HERE / 'oscar_report')!r})\n"
            f"spec = u.spec_from_file_location('p', {str(HERE / 'oscar_report/__main__.py')!r})\n"
            "p = u.module_from_spec(spec); spec.loader.exec_module(p)\n"
            "signal.signal(signal.SIGINT, p.on_signal)\n"
            f"p.Output({str(self.folder / 'slow/a.html')!r}).write(b'x')\n"
            "assert len(os.listdir(sys.argv[1])) == 1\n"
            "os.kill(os.getpid(), signal.SIGINT); time.sleep(60)\n"
        )
        result = subprocess.run(
            [sys.executable, "-B", "-c", code, str(self.folder / "slow")],
            capture_output=True,
            text=True,
            timeout=300,
        )
        self.assertEqual(result.returncode, 130, result)
        self.assertEqual(result.stderr, "error: interrupted; no file was written\n")
        self.assertEqual(list((self.folder / "slow").iterdir()), [])

    def test_a_signal_held_back_by_the_caller_is_answered(self):
        code = (
            "import os, signal, sys\n"
            "signal.signal(signal.SIGINT, signal.SIG_DFL)\n"
            "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])\n"
            "os.kill(os.getpid(), signal.SIGINT)\n"
            "os.execv(sys.executable, [sys.executable, '-B', *sys.argv[1:]])\n"
        )
        command = [sys.executable, "-c", code, str(HERE / "oscar_report"), str(self.folder), "a"]
        result = subprocess.run(command, capture_output=True, text=True, timeout=300)
        self.assertEqual(result.returncode, 130, result)
        self.assertEqual(result.stderr, "error: interrupted; no file was written\n")

    @unittest.skipUnless(importlib.util.find_spec("matplotlib"), "needs matplotlib")
    def test_hostile_text_stays_text(self):
        """In every string that a file may hold."""
        for name, make in samples.ALL.items():
            document = make()
            document["results"] = document["results"][-2:]
            for path, value in list(places(document)):
                if isinstance(value, str) and path[-1] not in ("version", "measure", "needles"):
                    document = replaced(document, path, HOSTILE)
            self.put(name, {**document, "server": HOSTILE})
        page, result = self.report("--no-pdf")
        self.assertEqual(result.returncode, 0, result.stderr)
        seen = Text(page.read_text())
        self.assertEqual(seen.open, [])
        self.assertNotIn("script", seen.tags)
        self.assertIn(HOSTILE, seen.text)

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
