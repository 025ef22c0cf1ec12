"""The evaluations but ppl and kl, on a model with random weights and on a made-up server."""

import http.server
import json
import re
import threading
import typing

from cli_case import CliTest, main


class Server(http.server.BaseHTTPRequestHandler):
    """An OpenAI-compatible server that answers with the document's needle, or with an error. A
    token is four bytes."""

    protocol_version = "HTTP/1.1"
    requests: typing.ClassVar[list] = []
    fault = None

    def log_message(self, *_):
        pass

    def reply(self, status, document):
        body = document if isinstance(document, bytes) else json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        self.reply(200, {"data": [{"id": "made-up"}]})

    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        Server.requests.append((self.path, dict(self.headers), request))
        if Server.fault and request["max_tokens"] > 1:
            return self.reply(*Server.fault)
        prompt = request["messages"][0]["content"]
        document, _, question = prompt.rpartition("\n\n")
        thing = re.search(r"the (\w+)\?", question)
        found = re.search(rf"pass key of the {thing[1]} is (\d+)", document) if thing else None
        found = found or (thing and re.search(rf"hid the {thing[1]} in the (\w+ \w+)", document))
        self.reply(
            200,
            {
                "choices": [{"message": {"content": f"It is {found[1]}." if found else "?"}}],
                "usage": {"prompt_tokens": 10 + len(prompt.encode()) // 4},
            },
        )


class Served(CliTest):
    def setUp(self):
        super().setUp()
        Server.requests, Server.fault = [], None
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{server.server_port}"
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            self.environment.pop(name, None)

    def test_a_server_is_asked_as_a_model_is(self):
        path = self.folder / "r.json"
        self.environment["OPENAI_API_KEY"] = "secret"
        self.good(
            *("eval", "niah", "--url", self.url, "--ctx", "1024,2048", "--depths", "0,50,100"),
            *("--seeds", "1", "--json", str(path)),
        )
        document = json.loads(path.read_text())
        self.assertEqual(document["server"], self.url + "/v1")
        self.assertEqual(document["model"], "made-up")
        self.assertNotIn("secret", path.read_text())
        row = document["results"][0]
        self.assertEqual((row["asked"], row["right"], row["share"]), (12, 1, 1))
        self.assertEqual(len(row["cells"]), 2 * 2 * 3)
        for asked_path, headers, request in Server.requests:
            self.assertEqual(asked_path, "/v1/chat/completions")
            self.assertEqual(headers["Authorization"], "Bearer secret")
            self.assertEqual(request["temperature"], 0)
            # Documents are as long as asked for in the server's own tokens, never longer.
            self.assertLess(len(request["messages"][0]["content"]) / 4, 2048)
        longest = max(len(r["messages"][0]["content"]) for _, _, r in Server.requests)
        self.assertGreater(longest / 4, 1600)

    def test_questions_of_a_document(self):
        path = self.folder / "r.json"
        text = "Long ago it rained. Ann hid the lantern in the red box. The end came soon."
        question = {"question": "Who saw the lantern?", "evidence": "hid the lantern in the red"}
        questions = json.dumps([{**question, "answers": ["red box", "box"]}])
        own = ["-f", self.write("d.txt", text), "--questions", self.write("q.json", questions)]
        self.good("eval", "qa", "--url", self.url + "/v1/", *own, "--json", str(path))
        row = json.loads(path.read_text())["results"][0]
        self.assertEqual((row["asked"], row["right"]), (1, 1))
        self.refused("eval", "qa", "--url", self.url, *own[:2], names=["--questions"], status=2)

    def test_what_a_server_says_is_passed_on(self):
        command = ["eval", "niah", "--url", self.url, "--ctx", "1024"]
        Server.fault = (400, {"error": {"message": "context too long"}})
        self.refused(*command, names=[self.url, "status 400", "context too long"])
        Server.fault = (503, b"busy")
        self.refused(*command, names=["status 503", "busy"])
        Server.fault = (200, b"<html>")
        self.refused(*command, names=["no JSON"])
        Server.fault = (200, {"choices": []})
        self.refused(*command, names=["choices[0]"])
        self.refused("eval", "niah", "--url", "http://127.0.0.1:1", names=["http://127.0.0.1:1"])
        self.refused("eval", "niah", "--url", "file:///etc/passwd", names=["file:///etc/passwd"])
        self.refused("eval", "niah", names=["--model", "--url"], status=2)


class Retrieval(CliTest):
    def test_needles_are_asked_for_at_every_depth(self):
        path = self.folder / "r.json"
        common = ["eval", "niah", "-m", self.tiny(), "-t", "2", "--seeds", "1"]
        result = self.good(
            *common,
            *("--ctx", "1024,1536", "--depths", "0,100", "--kv", "f16", "--kv", "quarot"),
            *("--json", str(path)),
        )
        self.assertIn("depth 100 %", result.out)
        rows = json.loads(path.read_text())["results"]
        self.assertEqual([row["kv"] for row in rows], ["f16", "quarot"])
        self.assertEqual(rows[0]["asked"], 8)
        self.assertGreater(rows[0]["kv_bytes"], 2 * rows[1]["kv_bytes"])
        self.refused(*common, "--ctx", "256", "--kv", "f16", names=["5 needle(s)", "longer than"])
        self.refused(*common, "--ctx", "4096", "--kv", "f16", names=["4096", "2048"])
        self.refused(*common, "--form", "riddle", "--kv", "f16", names=["riddle", "passkey"])

    def test_a_question_does_not_depend_on_those_before(self):
        facts = [f"The number of box {i} is {i * 7919 % 1000}." for i in range(12)]
        text = self.write("d.txt", " ".join(facts))
        answers = []
        for order in (range(12), reversed(range(12))):
            questions = [
                {"question": f"Number {i}?", "answers": ["x"], "evidence": facts[i]} for i in order
            ]
            path = self.folder / "r.json"
            self.good(
                *("eval", "qa", "-m", self.tiny(), "-t", "2", "-f", text, "--ctx", "800"),
                *("--questions", self.write("q.json", json.dumps(questions))),
                *("--kv", "quarot:sink=16,recent=32", "--json", str(path)),
            )
            rows = json.loads(path.read_text())["results"][0]["answers"]
            answers.append({row["question"]: row["answer"] for row in rows})
        self.assertEqual(answers[0], answers[1])
        self.assertEqual(len(answers[0]), 12)


class Measures(CliTest):
    def setUp(self):
        super().setUp()
        self.path = self.folder / "r.json"
        self.text = self.write("text.txt", self.words(1500))

    def rows(self):
        return json.loads(self.path.read_text())["results"]

    def test_generations_are_compared_with_f16(self):
        self.good(
            *("eval", "generate", "-m", self.tiny(), "-t", "2", "-f", self.text),
            *("--prompt-tokens", "300", "-n", "24", "--prompts", "2"),
            *("--kv", "naive:k16v16", "--kv", "naive:sink=0,recent=0", "--json", str(self.path)),
        )
        rows = self.rows()
        self.assertEqual(rows[0]["kv"], "f16")
        self.assertEqual((rows[0]["common_prefix"], rows[0]["same"]), (1, 2))
        self.assertEqual(len(rows[2]["texts"]), 2)
        self.assertGreaterEqual(rows[1]["common_prefix"], rows[2]["common_prefix"])

    def test_a_sweep_is_a_list_of_one_kv(self):
        common = ["-m", self.tiny(), "-t", "2", "-f", self.text, "--ctx", "512"]
        self.good("eval", "sweep", "windows", *common, "--kv", "naive", "--json", str(self.path))
        document = json.loads(self.path.read_text())
        self.assertEqual((document["sweep"], document["base"]), ("windows", "naive"))
        rows = {row["kv"]: row for row in document["results"]}
        self.assertEqual(len(rows), 2 + 8)
        # 256 + 1024 exact tokens are more than the context.
        wide, none = rows["naive:sink=256,recent=1024"], rows["naive:sink=0,recent=0"]
        self.assertLess(wide["kl"]["mean"], none["kl"]["mean"])
        result = self.good("eval", "sweep", "ablation", *common, "--kv", "naive")
        self.assertIn("left out", result.err)  # there is no Hadamard to leave out
        document = self.folder / "ablation.json"
        options = ["--kv", "oscar", "--json", str(document)]
        self.good("eval", "sweep", "ablation", *common, *options)
        kvs = [row["kv"] for row in json.loads(document.read_text())["results"]]
        for part in ("no-u", "target=raw", "per-layer"):
            self.assertIn(f"oscar (calibrated with {part})", kvs)
        for part in ("no-u", "no-p", "no-hadamard", "no-clip", "unbiased"):
            self.assertIn(f"oscar:{part}", kvs)
        self.refused("eval", "sweep", "colours", *common, names=["colours", "windows"])
        self.refused("eval", "sweep", "bits", *common, "--kv", "q8_0", names=["nothing to vary"])

    def test_layers_have_errors_where_bits_are_few(self):
        self.good(
            *("eval", "layers", "-m", self.tiny(), "-t", "2", "-f", self.text, "--ctx", "512"),
            *("--kv", "quarot:sink=0,recent=0", "--kv", "quarot:k4v4,sink=0,recent=0"),
            *("--kv", "naive:k16v16", "--json", str(self.path)),
        )
        two, four, exact = self.rows()
        self.assertEqual([h["layer"] for h in two["heads"]], [0, 0, 1, 1])
        for name in ("k_relative", "v_relative", "logit_mse", "weights_kl", "output_relative"):
            self.assertGreater(two["mean"][name], 4 * four["mean"][name], name)
            self.assertLess(exact["mean"][name], 1e-4, name)  # BF16 rows
        self.assertEqual(len(two["channels"][0]["k"]["raw"]), 64)
        common = ["eval", "layers", "-m", self.tiny(), "-f", self.text]
        self.refused(*common, "--kv", "f16", names=["--kv f16", "looked into"])
        self.refused(*common, "--ctx", "100000", "--kv", "naive", names=["100000"])


if __name__ == "__main__":
    main()
