"""What the tests of the program share: a folder, small models, and how it is run.

A test file is called as: FILE OSCAR [unittest arguments], where OSCAR is the program. Tests on a
real model need OSCAR_TEST_MODEL, and say so when they are skipped.
"""

import os
import pathlib
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

from tiny_gguf import TinyModel

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
MAX_BAD_INPUT_MIB = 200
INTERRUPTED = "error: interrupted; no output file was written"
program = ""


def real_model():
    path = os.environ.get("OSCAR_TEST_MODEL")
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
        process = subprocess.Popen(
            [program, *arguments],
            stdout=stdout,
            stderr=subprocess.PIPE,
            env=self.environment,
            preexec_fn=limits,
            cwd=self.folder,
        )
        out, err = process.communicate(timeout=600)
        # ru_maxrss of children is that of the largest one so far; good as an upper bound.
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
        return Result(
            process.returncode,
            (out or b"").decode("utf-8", "replace"),
            err.decode("utf-8", "replace"),
            peak,
        )

    def assert_small(self, result):
        """Resident memory stayed small. Under the address sanitizer that says nothing: it keeps
        freed memory back, so only other builds are judged."""
        if "address" not in os.environ.get("OSCAR_SANITIZE", ""):
            self.assertLess(result.peak_kib, MAX_BAD_INPUT_MIB << 10)

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

    def interrupt(self, command, when=None, signals=(signal.SIGINT,)):
        """Sends it the signals at one moment, after 1.5 s or once `when()` is true. It ends with
        status 130 within a minute. Returns the lines on stdout and on stderr; stdout is the file
        "printed" while it runs."""
        printed = self.folder / "printed"
        with printed.open("wb") as out:
            process = subprocess.Popen(
                [program, *command],
                stdout=out,
                stderr=subprocess.PIPE,
                env=self.environment,
                cwd=self.folder,
            )
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        if when is None:
            time.sleep(1.5)
        else:
            while not when() and process.poll() is None:
                time.sleep(0.02)
        # Stopped, it gets all of them before it goes on.
        for number in (signal.SIGSTOP, *signals, signal.SIGCONT):
            process.send_signal(number)
        _, err = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 130, err)
        return printed.read_text().splitlines(), err.decode().splitlines()

    def ask(self, model, *more):
        return ["run", "-m", model, "-p", "hello", "-n", "4", "-t", "2", "--no-chat", *more]


def main():
    global program
    program = os.path.abspath(sys.argv.pop(1))
    unittest.main(module="__main__", verbosity=2)
