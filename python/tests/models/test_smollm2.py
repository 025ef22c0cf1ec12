"""SmolLM2-135M: artefacts of the GGUF and of the Hugging Face form agree; the cache's quality."""

import os
import pathlib
import re
import subprocess

import numpy as np
import oscar_kv
import pytest
import torch
from oscar_kv.transformers import OscarCache, calibrate_folder
from oscar_kv.transformers.model import weights_hash
from oscar_kv.weights import folder_hash
from support import kl, load, smollm2

DATA = pathlib.Path(__file__).parents[3] / "data"
TOKENS = 1024

pytestmark = pytest.mark.skipif(
    "OSCAR_TEST_GGUF" not in os.environ,
    reason="no model: set OSCAR_TEST_GGUF (scripts/test_python)",
)


@pytest.fixture(scope="module")
def words(tmp_path_factory) -> pathlib.Path:
    """Lower-case words: llama.cpp and the tokenizer that transformers makes of a GGUF file cut
    digits and symbols differently, words the same."""
    text = (DATA / "calibration.txt").read_text(encoding="utf-8")
    path = tmp_path_factory.mktemp("words") / "words.txt"
    path.write_text(" ".join(re.findall(r"\b[a-z]+\b", text)[:4000]))
    return path


@pytest.fixture(scope="module")
def artefacts(words, tmp_path_factory) -> dict[str, pathlib.Path]:
    """Method → path of the artefact made from the Hugging Face folder."""
    folder, out = tmp_path_factory.mktemp("artefacts"), {}
    for method in ("oscar", "oscar-plus"):
        artefact, warnings = calibrate_folder(
            smollm2(), [words], method=method, num_tokens=TOKENS, num_threads=1
        )
        assert warnings == []
        out[method] = folder / f"{method}.safetensors"
        artefact.save(out[method])
    return out


def test_the_hash_of_a_folder_is_that_of_its_model():
    """Engine plugins know the files only."""
    model = load(smollm2())
    assert folder_hash(smollm2(), model.config) == weights_hash(model) != ""


def to_float32(source: str, target: pathlib.Path) -> None:
    """The same GGUF file with its weights decoded: no activation is rounded to 8 bits then."""
    import gguf

    reader = gguf.GGUFReader(source)
    architecture = reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(target, architecture)
    left_out = ("general.architecture", "general.file_type", "general.quantization_version")
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name in left_out:
            continue
        kind = field.types[0]
        more = {"sub_type": field.types[-1]} if kind == gguf.GGUFValueType.ARRAY else {}
        writer.add_key_value(name, field.contents(), kind, **more)
    for tensor in reader.tensors:
        values = gguf.dequantize(tensor.data, tensor.tensor_type)
        writer.add_tensor(tensor.name, values.reshape(tensor.shape[::-1]).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def hadamard_and_order(size: int) -> np.ndarray:
    """H·P: the normalised Sylvester Hadamard, its columns in bit-reversed order."""
    matrix = np.ones((1, 1))
    while len(matrix) < size:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    bits = size.bit_length() - 1
    return matrix[:, [int(f"{i:0{bits}b}"[::-1], 2) for i in range(size)]] / np.sqrt(size)


def covariances(artefact: oscar_kv.Artefact, side: str, layer: int) -> np.ndarray:
    """C = U Λ Uᵀ of each head, out of R = U·H·P and the spectrum."""
    rotations = artefact.tensors[f"layers.{layer}.{side}_transform"].astype(np.float64)
    spectra = artefact.tensors[f"layers.{layer}.{side}_spectrum"].astype(np.float64)
    bases = rotations @ hadamard_and_order(rotations.shape[1]).T
    return np.einsum("hij,hj,hkj->hik", bases, spectra, bases)


def test_artefacts_of_gguf_and_hugging_face_agree(artefacts, words, tmp_path):
    cli = os.environ.get("OSCAR_CLI", "")
    if not os.access(cli, os.X_OK):
        pytest.skip(f"no oscar command at '{cli}': set OSCAR_CLI to one built with llama.cpp")
    model = tmp_path / "float32.gguf"
    to_float32(os.environ["OSCAR_TEST_GGUF"], model)
    for method, path in artefacts.items():
        made = tmp_path / f"{method}.safetensors"
        command = [cli, "calibrate", "-m", model, "-f", words, "--method", method, "-t", "1"]
        command += ["--tokens", TOKENS, "-o", made]
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        ours, theirs = oscar_kv.Artefact.load(path), oscar_kv.Artefact.load(made)
        theirs.check_model(ours.architecture, ours.model)
        assert theirs.ropes[0].pairing == "interleaved"
        ours = ours.with_pairing("interleaved")
        np.testing.assert_allclose(ours.ropes[0].inv_freq, theirs.ropes[0].inv_freq, rtol=1e-5)
        compare(method, ours, theirs)


def compare(method: str, ours: oscar_kv.Artefact, theirs: oscar_kv.Artefact) -> None:
    """llama.cpp's side attends over keys and values rounded to BF16, 2^-9 of each at most. A layer
    passes on what it got and adds as much again at most, so rows of layer L are off by (L + 1)·2^-9
    of themselves, a covariance by twice that; outputs feel keys and values, so one more."""
    for layer in ours.layers:
        row_bound = (layer + 1) * 2**-9
        if method == "oscar":
            for side, bound in (("k", 2 * row_bound), ("v", 2 * (row_bound + 2**-9))):
                a, b = covariances(ours, side, layer), covariances(theirs, side, layer)
                for head in range(len(a)):
                    error = np.linalg.norm(a[head] - b[head]) / np.linalg.norm(b[head])
                    assert error < bound, (layer, side, head)
        else:
            a, b = (x.tensors[f"layers.{layer}.k_mean"] for x in (ours, theirs))
            assert np.linalg.norm(a - b) / np.linalg.norm(b) < row_bound, layer


@pytest.fixture(scope="module")
def held_out():
    """Logits of the model's own cache on a text, and the same through an OscarCache."""
    from transformers import AutoTokenizer

    model = load(smollm2())
    text = (DATA / "heldout.txt").read_text(encoding="utf-8")[:8000]
    ids = AutoTokenizer.from_pretrained(smollm2())(text, return_tensors="pt").input_ids[:, :768]
    with torch.inference_mode():
        own = model(ids).logits[0]

    def through(kv: str | pathlib.Path) -> float:
        """Mean KL over the second half."""
        cache = OscarCache(model, kv, max_tokens=1024)
        with torch.inference_mode():
            logits = model(ids, past_key_values=cache).logits[0]
        return float(kl(own[384:], logits[384:]).mean())

    return through


def test_empty_text_is_refused(tmp_path, capfd):
    from oscar_kv.cli import main

    (tmp_path / "empty.txt").touch()
    arguments = ["calibrate", smollm2(), "--text", tmp_path / "empty.txt", "-o", tmp_path / "a"]
    assert main([*map(str, arguments)]) == 1
    assert "has 0 tokens; calibration needs at least 512" in capfd.readouterr().err


def test_exact_bits_are_the_models_own_cache(held_out):
    # BF16 keys and values in 30 layers. The same rounding of every cached row is worth 6e-5 in an
    # independent float32 run of this model at 4k; five times that for another text.
    exact = held_out("naive:k16v16")
    print(f"KL: 16 bits {exact:.2e}")
    assert exact < 3e-4


def test_quality_follows_the_method(held_out, artefacts):
    """With windows that leave most tokens to the codes: oscar-plus is near, and nearer than what it
    replaces at as many bits or more."""
    window = "sink=16,recent=64"
    plus = held_out(f"{artefacts['oscar-plus']}:{window}")
    plus3 = held_out(f"{artefacts['oscar-plus']}:k3v2,{window}")
    quarot = held_out(f"quarot:{window}")
    print(f"KL: oscar-plus {plus:.4f}, k3v2 {plus3:.4f}, quarot {quarot:.4f}")
    assert plus3 < plus < quarot / 2
    assert plus < 0.15


def test_it_answers(artefacts):
    from transformers import AutoTokenizer

    model, tokenizer = load(smollm2()), AutoTokenizer.from_pretrained(smollm2())
    question = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(
        question, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    cache = OscarCache(model, f"{artefacts['oscar-plus']}:sink=4,recent=16", max_tokens=256)
    out = model.generate(**prompt, past_key_values=cache, max_new_tokens=12, do_sample=False)
    assert "Paris" in tokenizer.decode(out[0, prompt["input_ids"].shape[1] :])
