"""Stock vLLM on CPU, end to end, on SmolLM2-135M (scripts/vllm_cpu_test).

The truth is vLLM's own cache in float32: `stock`. Every engine is a process of its own; they run
once, when a test first asks for one.
"""

import json
import os
import pathlib
import subprocess
import sys

import oscar_kv
import pytest

HERE = pathlib.Path(__file__).parent
MODEL = os.environ.get("OSCAR_TEST_HF_MODEL")
ARTEFACT = os.environ.get("OSCAR_TEST_ARTEFACT")
if not MODEL or not ARTEFACT:
    pytest.skip("scripts/vllm_cpu_test sets the model and its artefact", allow_module_level=True)

TEXT = HERE.parents[2] / "data" / "heldout.txt"
QUESTIONS = ["What is the capital of France?", "Which planet do people live on?"]
TEXT_TOKENS, PREFIX_TOKENS = 1024, 700
WHOLE, CHUNK = 2304, 256
KEPT = ("stock", "artefact")

# name → (kv, most tokens a step)
ENGINES = {
    "stock": (None, WHOLE),
    "quarot": ("quarot", WHOLE),
    "artefact": (ARTEFACT, WHOLE),
    "artefact in chunks": (ARTEFACT, CHUNK),
    "no windows": (f"{ARTEFACT}:sink=0,recent=0", WHOLE),
}


def run(script: str, *arguments: str) -> str:
    command = [sys.executable, str(HERE / script), *arguments]
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
        kv, chunk = ENGINES[name]
        case = {
            "model": MODEL,
            "kv": kv,
            "chunk": chunk,
            "text": str(TEXT),
            "text_tokens": TEXT_TOKENS,
            "references": {key: self._logits(other) for key, other in references.items()},
            "keep": self._logits(name) if name in KEPT else None,
            "questions": QUESTIONS,
            "prefix_tokens": PREFIX_TOKENS,
        }
        paths = [self._folder / f"{name}.{kind}.json" for kind in ("case", "result")]
        paths[0].write_text(json.dumps(case))
        run("engine_case.py", *map(str, paths))
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
    twice = engines["no windows"]["twice"]
    assert twice["miss"]["cached"] == 0
    assert twice["hit"]["cached"] >= PREFIX_TOKENS - 128 - 1
    assert twice["hit"]["tokens"] == twice["miss"]["tokens"]


def test_hit_with_windows_is_near(engines):
    """A hit's recent tokens are codes until there are new ones; its first tokens are exact."""
    twice = engines["artefact"]["twice"]
    assert twice["hit"]["cached"] > 0
    assert abs(twice["hit"]["first_logprob"] - twice["miss"]["first_logprob"]) < 0.5


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
        for line in run("refusal_cases.py", MODEL, str(wrong)).splitlines()
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
