"""Stock vLLM on CPU, end to end, on SmolLM2-135M (scripts/vllm_cpu_test).

The truth is vLLM's own cache in float32: `stock`. Every engine is a process of its own; they run
once, when a test first asks for one.
"""

import json
import os
import pathlib
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

import oscar_kv
import pytest

HERE = pathlib.Path(__file__).parent
QUALITY = HERE.parents[2] / "bench" / "vllm" / "quality.py"
MODEL = os.environ.get("OSCAR_TEST_HF_MODEL")
ARTEFACT = os.environ.get("OSCAR_TEST_ARTEFACT")
if not MODEL or not ARTEFACT:
    pytest.skip("scripts/vllm_cpu_test sets the model and its artefact", allow_module_level=True)

TEXT = HERE.parents[2] / "data" / "heldout.txt"
QUESTIONS = ["What is the capital of France?", "Which planet do people live on?"]
TEXT_TOKENS, PROMPTS = 1024, 2
# What llama.cpp's f16 cache on this model differs by in itself, attention computed in another way:
# KL in nats a token (README.md, Quality).
FLOOR = 0.0031
WHOLE, CHUNK = 2304, 256
ENGINE = {
    "dtype": "float32",
    "max_model_len": WHOLE,
    "max_num_seqs": 4,
    "enforce_eager": True,
    "kv_cache_memory_bytes": 1 << 28,
    "distributed_executor_backend": "uni",
    "disable_log_stats": True,
}
KEPT = ("stock", "artefact")

# name → (kv, most tokens a step, prompts whose hits are compared)
ENGINES = {
    "stock": (None, WHOLE, 0),
    "quarot": ("quarot", WHOLE, 0),
    "artefact": (ARTEFACT, WHOLE, PROMPTS),
    "artefact in chunks": (ARTEFACT, CHUNK, 0),
    "no windows": (f"{ARTEFACT}:sink=0,recent=0", WHOLE, PROMPTS),
    "hits as they come": (ARTEFACT, WHOLE, PROMPTS),
}


def run(script: pathlib.Path, *arguments: str) -> str:
    command = [sys.executable, str(script), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1500, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


class Engines:
    """Results by name; an engine whose logits another is compared with runs before it."""

    def __init__(self, folder: pathlib.Path) -> None:
        self._folder, self._results = folder, {}

    def __getitem__(self, name: str) -> dict:
        if name in self._results:
            return self._results[name]
        references = {"stock": "stock"} if name != "stock" else {}
        if name == "artefact in chunks":
            references["whole"] = "artefact"
        for needed in references.values():
            self[needed]
        kv, chunk, prompts = ENGINES[name]
        case = {
            "model": MODEL,
            "kv": kv,
            "engine": ENGINE | {"max_num_batched_tokens": chunk},
            "text": str(TEXT),
            "text_tokens": TEXT_TOKENS,
            "step_tokens": None,
            "references": {key: self._logits(other) for key, other in references.items()},
            "keep": self._logits(name) if name in KEPT else None,
            "questions": QUESTIONS,
            "recompute": name != "hits as they come",
            "hits": prompts,
        }
        paths = [self._folder / f"{name}.{kind}.json" for kind in ("case", "result")]
        paths[0].write_text(json.dumps(case))
        run(QUALITY, *map(str, paths))
        self._results[name] = json.loads(paths[1].read_text())
        print(f"\n{name}: {json.dumps(self._results[name])}")
        return self._results[name]

    def _logits(self, name: str) -> str:
        return str(self._folder / f"{name}.npy")


@pytest.fixture(scope="module")
def engines(tmp_path_factory):
    return Engines(tmp_path_factory.mktemp("engines"))


def test_the_scheduler_has_the_tokens_that_the_bytes_give(engines):
    method = oscar_kv.Method(ARTEFACT)
    codec = method.codec(0)
    run_bytes = codec.key_plane.plane_bytes + codec.value_plane.plane_bytes
    gain = 64 * 2 * method.model.head_dim_k * 4 / run_bytes
    had = engines["stock"]["kv_tokens"], engines["artefact"]["kv_tokens"]
    # The engine counts whole blocks of 128 tokens.
    assert had[1] / had[0] == pytest.approx(gain, rel=128 / had[0])
    # Against a BF16 cache, at head size 64: a little less than at 128.
    assert gain / 2 > 6.3


def test_answers(engines):
    for name in ("stock", "artefact", "no windows"):
        assert "Paris" in engines[name]["answers"][0], engines[name]["answers"]
    for name in ("stock", "artefact"):
        assert "Earth" in engines[name]["answers"][1], engines[name]["answers"]


def test_a_calibrated_artefact_is_many_times_nearer_than_the_data_free_method(engines):
    ours, data_free = engines["artefact"]["kl"]["stock"], engines["quarot"]["kl"]["stock"]
    assert data_free["mean"] > 0.1
    assert ours["mean"] < data_free["mean"] / 4
    assert ours["trimmed"] < data_free["trimmed"] / 4


def test_chunked_is_unchunked(engines):
    """Matrix products of other shapes round otherwise, and a code may flip: vLLM's own cache sets
    the floor, and what is left must be small beside the cache's own error."""
    result = engines["artefact in chunks"]["kl"]
    assert result["whole"]["median"] < engines["artefact"]["kl"]["stock"]["median"] / 50
    assert result["stock"]["mean"] == pytest.approx(
        engines["artefact"]["kl"]["stock"]["mean"], rel=0.05
    )


def test_hit_is_miss_without_windows(engines):
    """For tokens computed in steps of 64, both; those of answers are computed one by one, which
    rounds otherwise, and without windows a code that flips for it is felt."""
    hits = engines["no windows"]["hits"]
    for kind in ("again", "shared"):
        assert hits[kind]["cached_tokens"] >= 640, hits
        assert hits[kind]["same_answers"] == PROMPTS, hits
        assert hits[kind]["kl"] < engines["artefact"]["kl"]["stock"]["mean"] / 100, hits


def test_hit_with_windows_is_near(engines):
    """A window of the prompt is computed in any case, over exact copies as far as any block has
    them. Asked is twice the floor."""
    hits = engines["artefact"]["hits"]
    for kind in ("again", "turn", "shared"):
        # Of 700 or more tokens all but 256, in blocks of 128.
        assert 384 <= hits[kind]["cached_tokens"] <= 512, hits
        assert hits[kind]["kl"] < 2 * FLOOR, hits


def test_hits_may_end_anywhere_where_the_user_says_so(engines):
    """Then what a request wrote last is taken from its block, where it is still there; the recent
    tokens of a beginning that others share are codes until there are new ones."""
    hits, nearer = engines["hits as they come"]["hits"], engines["artefact"]["hits"]
    for kind in ("again", "turn", "shared"):
        assert hits[kind]["cached_tokens"] >= 640, hits
    assert hits["turn"]["kl"] < 2 * FLOOR, hits
    assert hits["shared"]["kl"] > nearer["shared"]["kl"], (hits, nearer)


def test_refusals_at_start(tmp_path):
    wrong = tmp_path / "wrong.safetensors"
    collector = oscar_kv.Collector()
    import numpy as np

    random = np.random.default_rng(1)
    for layer in range(2):
        rows = {
            name: random.standard_normal((300, heads, 64), np.float32)
            for name, heads in (("queries", 4), ("keys", 2), ("values", 2), ("outputs", 4))
        }
        collector.add(layer, positions=np.arange(300), scale=0.125, **rows)
    collector.fit("oscar-plus", architecture="llama").save(wrong)
    lines = [
        line.split("\t")
        for line in run(HERE / "refusal_cases.py", MODEL, str(wrong)).splitlines()
        if line.startswith(("REFUSED", "STARTED"))
    ]
    reasons = {name: reason for kind, name, reason in lines if kind == "REFUSED"}
    for name, words in {
        "strict": "no artefact is given and strict is set",
        "other model": "num_layers",
        "missing file": "/nowhere/a.safetensors: no such file",
        "unknown setting": "has 'bits'; known: kv, strict, copy_blocks",
        "dtype": "kv_cache_dtype not supported",
    }.items():
        assert words in reasons.get(name, "(started)"), (name, lines)


def test_a_process_that_vllm_starts_knows_the_backend(tmp_path):
    """`vllm serve` pickles its configuration for processes that have loaded no plugin yet."""
    kept = tmp_path / "members.pickle"
    registry = "from vllm.v1.attention.backends.registry import AttentionBackendEnum as Backends"
    write = f"""
import pickle
from oscar_kv.vllm import plugin
plugin.register()
{registry}
with open({str(kept)!r}, "wb") as file:
    pickle.dump([Backends.OSCAR, Backends.CPU_ATTN], file)
"""
    read = f"""
import pickle
with open({str(kept)!r}, "rb") as file:
    members = pickle.load(file)
{registry}
assert members == [Backends.OSCAR, Backends.CPU_ATTN]
"""
    for script in (write, read):
        command = [sys.executable, "-c", script]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stderr[-2000:]


def test_the_server_answers_from_processes_of_its_own_in_bf16(tmp_path):
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{found.getsockname()[1]}"
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", MODEL]
    command += ["--attention-backend", "OSCAR", "--dtype", "bfloat16", "--enforce-eager"]
    command += ["--max-model-len", "1024", "--max-num-seqs", "2", "--served-model-name", "m"]
    command += ["--kv-cache-memory-bytes", str(1 << 27), "--port", address.rpartition(":")[2]]
    environment = os.environ | {"OSCAR_KV": ARTEFACT, "HF_HUB_OFFLINE": "1"}
    log = tmp_path / "log"
    with open(log, "w") as file:
        server = subprocess.Popen(command, env=environment, stdout=file, stderr=subprocess.STDOUT)
    try:
        for _ in range(300):
            assert server.poll() is None, log.read_text()[-4000:]
            try:
                urllib.request.urlopen(f"{address}/health", timeout=5)
                break
            except (urllib.error.URLError, OSError):
                time.sleep(2)
        question = {"model": "m", "max_tokens": 16, "temperature": 0}
        question["messages"] = [{"role": "user", "content": QUESTIONS[0]}]
        request = urllib.request.Request(
            f"{address}/v1/chat/completions",
            json.dumps(question).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=300) as response:
            answer = json.load(response)
    finally:
        server.terminate()
        server.wait(60)
    assert "Paris" in answer["choices"][0]["message"]["content"], answer
    assert "oscar-plus k2v2" in log.read_text()
