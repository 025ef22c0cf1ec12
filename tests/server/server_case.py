"""What the tests of `oscar serve` share: a server on a free port, and the official client.

A test file is called as: FILE OSCAR [unittest arguments], where OSCAR is the program. It needs a
model, OSCAR_TEST_MODEL, and the `openai` package; `scripts/setup` provides both.
OSCAR_SERVER_TEST_FULL=1 runs the long form: 50 rounds, 500 requests.
"""

import contextlib
import http.client
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

try:
    import openai
except ImportError:
    openai = None

MODEL = os.environ.get("OSCAR_TEST_MODEL", "")
FULL = os.environ.get("OSCAR_SERVER_TEST_FULL") == "1"
START_SECONDS = 120
program = ""


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def resident_kib(pid):
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    raise ValueError(f"no VmRSS of {pid}")


def resident_by_mapping(pid):
    """KiB that are resident, by the address at which each piece of a process's memory begins."""
    resident, place = {}, None
    for line in pathlib.Path(f"/proc/{pid}/smaps").read_text().splitlines():
        word = line.split()[0]
        if "-" in word and not word.endswith(":"):
            place = word.split("-")[0]
        elif word == "Rss:":
            resident[place] = int(line.split()[1])
    return resident


def children_of(pid):
    path = pathlib.Path(f"/proc/{pid}/task/{pid}/children")
    return [int(child) for child in path.read_text().split()]


class Server:
    """`oscar serve` on a port of its own. Stops with the `with` block."""

    def __init__(self, folder, *arguments, kv="quarot", model=MODEL, environment=None):
        self.port = free_port()
        self.log_path = pathlib.Path(folder) / f"server-{self.port}.log"
        command = [program, "serve", "-m", model, "--kv", kv, "--port", str(self.port)]
        with self.log_path.open("w") as log_file:
            self.process = subprocess.Popen(
                [*command, *map(str, arguments)],
                stdout=log_file,
                stderr=subprocess.STDOUT,
                env={**os.environ, "OMP_WAIT_POLICY": "passive", **(environment or {})},
            )
        self.wait_until_ready()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    def log(self):
        return self.log_path.read_text(errors="replace")

    def wait_until_ready(self):
        end = time.monotonic() + START_SECONDS
        while time.monotonic() < end:
            if self.process.poll() is not None:
                raise AssertionError(f"ended with {self.process.returncode}\n{self.log()}")
            with contextlib.suppress(OSError, http.client.HTTPException):
                if self.request("GET", "/health")[0] == 200:
                    return
            time.sleep(0.1)
        self.kill()
        raise AssertionError(f"not ready after {START_SECONDS} s\n{self.log()}")

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                self.kill()
                raise AssertionError(f"did not stop\n{self.log()}") from None

    def kill(self):
        """As a crash of the machine would: nothing is told, nothing cleaned up."""
        self.process.kill()
        self.process.wait()

    def server_pid(self):
        """llama-server's: the process itself, or its child where slots are saved."""
        children = children_of(self.process.pid)
        return children[0] if children else self.process.pid

    def request(self, method, path, body=None, timeout=600):
        """Status and body, parsed where it is JSON."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            data = json.dumps(body) if body is not None else None
            connection.request(method, path, data, {"Content-Type": "application/json"})
            response = connection.getresponse()
            text = response.read()
        finally:
            connection.close()
        try:
            return response.status, json.loads(text)
        except ValueError:
            return response.status, text

    def complete(self, prompt, **fields):
        """Of llama-server's own /completion: fails the test unless it is 200."""
        status, answer = self.request(
            "POST", "/completion", {"prompt": prompt, "temperature": 0, **fields}
        )
        if status != 200:
            raise AssertionError(f"status {status}: {answer}\n{self.log()}")
        return answer

    def slot(self, action, slot, filename):
        return self.request("POST", f"/slots/{slot}?action={action}", {"filename": filename})

    def client(self):
        return openai.OpenAI(
            base_url=f"http://127.0.0.1:{self.port}/v1", api_key="none", max_retries=0, timeout=600
        )


@unittest.skipUnless(MODEL and os.path.exists(MODEL), "no model: set OSCAR_TEST_MODEL")
@unittest.skipIf(openai is None, "no openai client: scripts/setup installs it")
class ServerTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="oscar-server-"))
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        # The client imports its parts when they are first used, which threads may not do at once.
        unused = openai.OpenAI(api_key="none")
        assert unused.chat.completions and unused.completions


def main():
    global program
    program = os.path.abspath(sys.argv.pop(1))
    unittest.main(module="__main__", verbosity=2)
