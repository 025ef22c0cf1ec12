"""`oscar serve` before the server runs: what is passed on, and what is refused, with its reason in
the last line and no model loaded."""

import fcntl
import json
import os
import pathlib
import resource
import signal
import socket
import struct
import subprocess
import sys
import time

import cli_case
from cli_case import CliTest, main

# Stands for llama-server: has the device, and says what it was started with.
STAND_IN = """#!/bin/sh
[ "$1" = --list-devices ] && echo "OSCAR0: there" && exit 0
echo "arguments:" "$@"
echo "OSCAR_KV=$OSCAR_KV OSCAR_LOG=$OSCAR_LOG"
echo "GGML_BACKEND_PATH=$GGML_BACKEND_PATH"
grep SigIgn /proc/self/status
exit 7
"""
# Answers on the Unix socket as llama-server does where slots are concerned; slot 1 is empty. Ends
# with the number of signals that it got within half a second, less one.
STUB = """#!{python}
import http.server, json, os, signal, socketserver, sys, threading, time

if sys.argv[1] == "--list-devices":
    print("OSCAR0: there")
    sys.exit()
argument = lambda name: sys.argv[sys.argv.index(name) + 1]
signals = []
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda *_: signals.append(1))


class Handler(http.server.BaseHTTPRequestHandler):
    def answer(self, status, value):
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self):
        self.answer(200, {{"default_generation_settings": {{"n_ctx": 256}}}})

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if "action=save" not in self.path:
            return self.answer(200, {{"forwarded": self.path}})
        empty = "/slots/1" in self.path
        path = os.path.join(argument("--slot-save-path"), json.loads(body)["filename"])
        with open(path, "wb") as file:
            file.write(b"" if empty else b"0123456789")
        if os.path.exists(os.path.join(argument("--slot-save-path"), "failing")):
            return self.answer(500, {{"error": {{"message": "Unable to save slot"}}}})
        wrong = os.path.exists(os.path.join(argument("--slot-save-path"), "full"))
        self.answer(200, {{"n_saved": 0 if empty else 3, "n_written": 11 if wrong else 10}})

    def address_string(self):
        return "here"

    def log_message(self, *_):
        pass


class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True


threading.Thread(target=Server(argument("--host"), Handler).serve_forever, daemon=True).start()
while not signals:
    time.sleep(0.02)
time.sleep(0.5)
os._exit(len(signals) - 1)
"""
DEAF = """#!/bin/sh
[ "$1" = --list-devices ] && echo "OSCAR0: there" && exit 0
trap '' TERM INT
: > "$0.deaf"
while :; do sleep 0.1; done
"""
SIGXFSZ_BIT = 1 << (signal.SIGXFSZ - 1)
MAX_CONNECTIONS = 256


def is_running(pid):
    try:
        stat = pathlib.Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rsplit(")", 1)[1].split()[0] != "Z"


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class ServeTest(CliTest):
    def stand_in(self, text=STAND_IN):
        path = self.write("llama-server", text)
        os.chmod(path, 0o755)
        return path

    def serve(self, *arguments, server=None, model=None, kv="quarot"):
        return [
            "serve",
            "-m",
            model or self.tiny(),
            "--kv",
            kv,
            "--port",
            str(free_port()),
            "--server",
            server or self.stand_in(),
            *arguments,
        ]


class Serve(ServeTest):
    def test_options_are_passed_on(self):
        port = str(free_port())
        command = self.serve("-c", "512", "-np", "2", "-t", "1", "-ub", "64", "--seed", "-1")
        result = self.run_cli(*command, "--port", port, "--temp", "0.5", "--", "--help", "-cb")
        self.assertEqual(result.status, 7, result)
        model = str(self.folder / "tiny.gguf")
        self.assertIn(
            f"arguments: -m {model} -c 512 -np 2 -t 1 -ub 64 --seed -1 --temp 0.5 --help -cb "
            f"--host 127.0.0.1 --port {port}",
            result.out,
        )
        self.assertIn("OSCAR_KV=quarot OSCAR_LOG=\n", result.out)
        self.assertRegex(result.out, "GGML_BACKEND_PATH=/.*liboscar-ggml.so")
        self.assertIn("quarot, 2 slots, 512 tokens", result.err)

    def test_an_artefact_becomes_an_absolute_path(self):
        text = self.write("text.txt", self.words(2000))
        model = self.tiny()
        self.good("calibrate", "-m", model, "-f", text, "--tokens", "512", "-o", "a.safetensors")
        result = self.run_cli(*self.serve("-c", "512", kv="a.safetensors:k3v2", model=model))
        self.assertIn(f"OSCAR_KV={self.folder}/a.safetensors:k3v2 ", result.out, result)

    def test_llamas_own_cache(self):
        result = self.run_cli(*self.serve("-c", "512", kv="q8_0"))
        self.assertIn("-ctk q8_0 -ctv q8_0", result.out)
        self.assertIn("OSCAR_KV= ", result.out)

    def test_slots_go_through_the_proxy(self):
        slots = self.folder / "slots"
        slots.mkdir()
        result = self.run_cli(*self.serve("-c", "512", "--slot-save-path", str(slots)))
        self.assertEqual(result.status, 7, result)
        self.assertIn(f"--slot-save-path {slots}", result.out)
        self.assertRegex(result.out, r"--host /\S*server.sock")
        self.refused(
            *self.serve("--slot-save-path", str(self.folder / "none")), names=["none", "no folder"]
        )
        self.refused(
            *self.serve("--slot-save-path", str(slots), "--ssl-key-file", "x"),
            names=["--ssl-key-file", "plain HTTP"],
        )

    def test_what_takes_the_cache_away_is_refused(self):
        for options, names in (
            (["-ctk", "q8_0"], ["-ctk", "--kv"]),
            (["--cache-type-v=q4_0"], ["--cache-type-v"]),
            (["-nkvo"], ["-nkvo"]),
            (["-ngl", "3"], ["-ngl"]),
            (["--device", "none"], ["--device"]),
            (["--cache_type_k", "q8_0"], ["--cache_type_k", "--kv"]),
            (["-hf", "some/model"], ["-hf", "-m"]),
            (["-fa", "off"], ["-fa off"]),
            (["--flash-attn=off"], ["-fa off"]),
        ):
            self.refused(*self.serve(*options), names=names)

    def test_variables_of_llama_server_are_refused_as_its_options(self):
        clean = dict(self.environment)
        for name, value, word in (
            ("DEVICE", "none", "plugin's device"),
            ("N_GPU_LAYERS", "0", "plugin's device"),
            ("CACHE_TYPE_K", "q8_0", "--kv"),
            ("CACHE_TYPE_V", "q8_0", "--kv"),
            ("NO_KV_OFFLOAD", "1", "plugin's device"),
            ("KV_OFFLOAD", "false", "plugin's device"),
            ("SPLIT_MODE", "row", "one device"),
            ("FLASH_ATTN", "off", "auto or on"),
            ("MODEL", "other.gguf", "-m"),
            ("HF_REPO", "some/model", "-m"),
            ("CTX_SIZE", "64", "-c"),
            ("N_PARALLEL", "8", "-np"),
            ("HOST", "0.0.0.0", "--host"),
            ("PORT", "1", "--port"),
        ):
            variable = "LLAMA_ARG_" + name
            self.environment = {**clean, variable: value}
            # Nothing is loaded: no model is there.
            self.refused(*self.serve(model="none.gguf"), names=[f"{variable}={value}", word])
        self.environment = {
            **clean,
            "LLAMA_ARG_KV_OFFLOAD": "1",
            "LLAMA_ARG_FLASH_ATTN": "on",
            "LLAMA_ARG_TEMPERATURE": "0",
        }
        self.assertEqual(self.run_cli(*self.serve("-c", "512")).status, 7)
        # llama.cpp's own cache takes them, but for those that are options here.
        self.environment = {**clean, "LLAMA_ARG_DEVICE": "none"}
        self.assertEqual(self.run_cli(*self.serve("-c", "512", kv="q8_0")).status, 7)
        self.environment = {**clean, "LLAMA_ARG_PORT": "1"}
        self.refused(*self.serve(kv="q8_0"), names=["LLAMA_ARG_PORT=1"])
        for value in ("", "abc", "0", "1.5", "99999999999999999999"):
            self.environment = {**clean, "LLAMA_ARG_UBATCH": value}
            self.refused(*self.serve(), names=["LLAMA_ARG_UBATCH", f"'{value}'", "1 to 1048576"])
        self.environment = clean
        self.refused(*self.serve("-ub", "abc"), names=["-ub", "'abc'", "1 to 1048576"])

    def test_a_file_that_may_not_grow_does_not_end_llama_server(self):
        result = self.run_cli(*self.serve("-c", "512"))
        ignored = int(result.out.split("SigIgn:")[1].split()[0], 16)
        self.assertTrue(ignored & SIGXFSZ_BIT, result)

    def test_folders_of_slots(self):
        self.refused(*self.serve("--slot-save-path", "/proc"), names=["/proc", "written to"])
        slots = self.folder / "slots"
        slots.mkdir()
        for name in ("oscar-part-1-0", "oscar-part-1-1", "mine"):
            (slots / name).write_bytes(b"x")
        with (slots / "oscar-part-1-1").open("rb") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            result = self.run_cli(*self.serve("-c", "512", "--slot-save-path", str(slots)))
        self.assertIn("oscar-part-1-0", result.err)
        self.assertEqual({path.name for path in slots.iterdir()}, {"oscar-part-1-1", "mine"})

    def test_a_context_that_does_not_fit_names_both_sizes(self):
        start = time.monotonic()
        result = self.refused(
            *self.serve("-c", "1000000000"), names=["1000000000 tokens", "available", "-c "]
        )
        self.assertGreaterEqual(result.err.count("iB"), 4)
        self.assertLess(time.monotonic() - start, 5)

    def test_reasons_are_in_the_last_line(self):
        """B45: within 5 s, exit 1, before any weights."""
        start = time.monotonic()
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = str(taken.getsockname()[1])
            self.refused(*self.serve(), "--port", port, names=[port, "Address already in use"])
        self.refused(*self.serve(server="none"), names=["none", "--server"])
        self.refused(*self.serve(model="none.gguf"), names=["none.gguf"])
        self.refused(*self.serve(kv="oskar"), names=["oskar", "oscar-plus"])
        self.refused(*self.serve(kv="quarot:k5v2"), names=["k5v2"])
        self.refused(*self.serve(model=self.tiny(head_dim=24)), names=["head size 24", "32"])
        self.refused(*self.serve("--host", "no such host"), names=["--host", "no such host"])
        self.refused(*self.serve(), "--port", "70000", names=["--port"], status=2)
        self.environment["OSCAR_CPU"] = "abacus"
        self.refused(*self.serve(), names=["OSCAR_CPU", "abacus", "scalar"])
        self.assertLess(time.monotonic() - start, 20)

    def test_a_server_of_another_version(self):
        old = self.stand_in(
            "#!/bin/sh\necho oscar: this llama.cpp brings ggml 0.0.1; the plugin ...\n"
        )
        self.refused(*self.serve(server=old), names=[old, "brings ggml 0.0.1"])
        silent = self.stand_in("#!/bin/sh\nexit 3\n")
        self.refused(*self.serve(server=silent), names=[silent, "OSCAR0", "3", "GGML_BACKEND_DL"])

    def test_more_threads_than_processors_are_mentioned(self):
        result = self.run_cli(*self.serve("-c", "512", "-t", "500"))
        self.assertIn("-t 500 is more than the", result.err)


class BehindTheProxy(ServeTest):
    """With a llama-server that answers, and its slots."""

    def setUp(self):
        super().setUp()
        self.slots = self.folder / "slots"
        self.slots.mkdir()
        self.temporary = self.folder / "tmp"
        self.temporary.mkdir()
        self.environment["TMPDIR"] = str(self.temporary)

    def start(self, stub=STUB):
        self.port = free_port()
        command = [*self.serve("-c", "512", "-np", "2"), "--slot-save-path", str(self.slots)]
        command += ["--port", str(self.port)]
        stand_in = self.stand_in(stub.format(python=sys.executable))
        command += ["--server", stand_in]
        self.log = (self.folder / "log").open("w+")
        self.addCleanup(self.log.close)
        self.process = subprocess.Popen(
            [cli_case.program, *command],
            stderr=self.log,
            stdout=self.log,
            env=self.environment,
            cwd=self.folder,
            start_new_session=True,
        )
        self.addCleanup(self.end)
        expected = 200 if stub is STUB else 503
        end = time.monotonic() + 60
        while time.monotonic() < end:
            if self.process.poll() is not None:
                break
            try:
                is_deaf = os.path.exists(stand_in + ".deaf")
                if self.request("GET", "/health")[0] == expected and (stub is not DEAF or is_deaf):
                    return
            except OSError:
                pass
            time.sleep(0.05)
        self.log.seek(0)
        self.fail("not ready: " + self.log.read())

    def end(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    def send(self, data):
        """The whole answer to some bytes."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=20) as client:
            client.sendall(data)
            answer = b""
            while piece := client.recv(65536):
                answer += piece
        return answer.decode()

    def request(self, method, target, body=None):
        data = body if isinstance(body, str) else "" if body is None else json.dumps(body)
        answer = self.send(
            f"{method} {target} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n"
            f"{data}".encode()
        )
        head, _, text = answer.partition("\r\n\r\n")
        return int(head.split()[1]), json.loads(text)

    def refused_request(self, target, body, *words, status=400):
        found, answer = self.request("POST", target, body)
        self.assertEqual(found, status, (target, body, answer))
        message = answer["error"]["message"]
        self.assertNotIn("\n", message)
        for word in words:
            self.assertIn(word, message)

    def children(self):
        pid = self.process.pid
        text = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text()
        return [int(child) for child in text.split()]

    def test_requests_of_slots(self):
        self.start()
        name = {"filename": "good"}
        save, restore = "/slots/0?action=save", "/slots/0?action=restore"
        status, answer = self.request("POST", save, name)
        self.assertEqual((status, answer["filename"], answer["n_saved"]), (200, "good", 3))
        good = (self.slots / "good").read_bytes()

        self.refused_request("/slots/1?action=save", name, "slot 1 is empty")
        for slot in ("2", "9", "-1"):
            self.refused_request(
                f"/slots/{slot}?action=save", name, f"slot {slot} ", "last one is 1"
            )
        (self.slots / "full").touch()
        self.refused_request(save, name, "'good'", "10 bytes", status=500)
        (self.slots / "full").unlink()
        (self.slots / "failing").touch()
        self.refused_request(
            *(save, name, "slot 0 could not be saved", "'good'", str(self.slots)),
            "Unable to save slot",
            status=500,
        )
        (self.slots / "failing").unlink()
        self.assertEqual((self.slots / "good").read_bytes(), good)

        for target in (
            "/slots/0/?action=restore",
            "/slots/0?action=restore#x",
            "/slots/0#?action=restore",
            "/slots/0?action=%72estore",
            "/slots/0?%61ction=restore",
            "/slots/0?x=1&action=restore",
            "/slots/0?action=save&action=restore",
            "/slots/0?action=restore&id_slot=1",
            "/%73lots/0?action=restore",
            "/%u0073lots/0?action=restore",
            "/slots%2f0?action=restore",
            "//slots/0?action=restore",
            "/slots//0?action=restore",
            "/slots/0?action=steal",
            "/slots/0",
            "/slots",
            "/slots/x?action=save",
            "/slots/99999999999999999999?action=save",
            "http://x/slots/0?action=restore",
        ):
            self.refused_request(target, name, "/slots/ID?action=save")
        for target in ("/slots/0?action=erase", "/tokenize", "/completion?x=/slots/1"):
            self.assertEqual(self.request("POST", target, {})[1], {"forwarded": target})

        for body, word in (
            ("", "missing"),
            ("{", "no JSON"),
            ([1], "no JSON object"),
            ({}, "filename"),
            ({"filename": 3}, "no text"),
            ({"filename": "../x"}, "'../x'"),
        ):
            self.refused_request(save, body, word)
            self.refused_request(restore, body, word)
        self.assertEqual({path.name for path in self.slots.iterdir()}, {"good"})

        (self.slots / "loop").symlink_to("loop")
        os.mkfifo(self.slots / "pipe")
        (self.slots / "folder").mkdir()
        (self.slots / "reserved").write_bytes(good[:-4] + struct.pack("<I", 7))
        self.refused_request(restore, {"filename": "loop"}, "'loop' cannot be read")
        for kind in ("pipe", "folder"):
            self.refused_request(restore, {"filename": kind}, f"'{kind}' is not a regular file")
            self.refused_request(save, {"filename": kind}, f"'{kind}' is not a regular file")
        self.refused_request(restore, {"filename": "reserved"}, "last four bytes say 7, not 0")
        self.refused_request(restore, {"filename": "none"}, "does not exist", status=404)

        for head in (b"GET / HTTP/1.1\nHost: x\n\n", b"GET / HTTP/1.1\r\nHost: x\n\r\n"):
            self.assertIn("LF", self.send(head))
        self.end_with(signal.SIGTERM, status=0)

    def test_too_many_connections(self):
        self.start()
        silent = [
            socket.create_connection(("127.0.0.1", self.port)) for _ in range(MAX_CONNECTIONS)
        ]
        status, answer = self.request("GET", "/health")
        self.assertEqual(status, 503)
        self.assertIn("256 connections", answer["error"]["message"])
        for connection in silent:
            connection.close()
        self.wait_for_health()

    def test_no_descriptors_left(self):
        """The loop waits rather than spins, and goes on when there are some again."""
        self.start()
        used = len(os.listdir(f"/proc/{self.process.pid}/fd"))
        resource.prlimit(self.process.pid, resource.RLIMIT_NOFILE, (used + 8, used + 100))
        silent = [socket.create_connection(("127.0.0.1", self.port)) for _ in range(20)]
        time.sleep(0.3)
        before = self.processor_seconds()
        time.sleep(1)
        self.assertLess(self.processor_seconds() - before, 0.3)
        for connection in silent:
            connection.close()
        self.wait_for_health()
        self.log.seek(0)
        self.assertEqual(self.log.read().count("no connection can be taken"), 1)

    def processor_seconds(self):
        fields = (
            pathlib.Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        )
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def wait_for_health(self):
        """The threads of connections that were closed end a moment later."""
        end = time.monotonic() + 10
        while self.request("GET", "/health")[0] != 200 and time.monotonic() < end:
            time.sleep(0.05)
        self.assertEqual(self.request("GET", "/health")[0], 200)

    def end_with(self, *signals, status):
        for number in signals:
            os.killpg(self.process.pid, number)
            time.sleep(0.05)
        self.assertEqual(self.process.wait(timeout=30), status)
        self.assertEqual(list(self.temporary.iterdir()), [])

    def test_one_signal_reaches_the_server_once(self):
        """To the whole group, as a terminal does it."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
            self.start()
            self.end_with(number, status=0)

    def test_two_signals_do_not_wait(self):
        self.start(DEAF)
        begin = time.monotonic()
        self.end_with(signal.SIGINT, signal.SIGINT, status=130)
        self.assertLess(time.monotonic() - begin, 5)

    def test_a_server_that_does_not_end_is_killed(self):
        self.start(DEAF)
        begin = time.monotonic()
        self.end_with(signal.SIGTERM, status=0)
        self.assertGreater(time.monotonic() - begin, 9)

    def test_what_a_kill_leaves_is_removed_by_the_next_server(self):
        self.start()
        (child,) = self.children()
        self.process.kill()
        self.process.wait()
        end = time.monotonic() + 10
        while is_running(child) and time.monotonic() < end:
            time.sleep(0.02)
        self.assertFalse(is_running(child))
        (left,) = self.temporary.iterdir()
        stranger = self.temporary / "oscar-serve-stranger"
        stranger.mkdir(mode=0o700)
        self.start()
        self.assertFalse(left.exists())
        self.assertTrue(stranger.exists())
        (own,) = set(self.temporary.iterdir()) - {stranger}
        first = self.process
        self.start()
        self.assertTrue(own.exists())
        first.kill()
        first.wait()


if __name__ == "__main__":
    main()
