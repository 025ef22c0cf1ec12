"""What `oscar-kv` says about folders, texts and files that cannot be used."""

import pytest
from oscar_kv.cli import main
from support import tiny


@pytest.fixture
def folder(tmp_path):
    """A random model with weights but no tokenizer."""
    path = tmp_path / "model"
    tiny().save_pretrained(path)
    return path


@pytest.fixture
def refusal(capfd):
    def run(*arguments) -> str:
        capfd.readouterr()
        assert main([*map(str, arguments)]) == 1
        lines = capfd.readouterr().err.strip().splitlines()
        assert len(lines) == 1, lines
        assert lines[0].startswith("error: ")
        return lines[0]

    return run


def test_calibrate_names_what_is_wrong(folder, refusal, tmp_path):
    text, out = tmp_path / "text.txt", ("-o", tmp_path / "a.safetensors")
    text.write_text("words " * 5000)
    assert "no such folder" in refusal("calibrate", tmp_path / "none", "--text", text, *out)
    assert "no config.json" in refusal("calibrate", tmp_path, "--text", text, *out)
    assert "no.txt: no such file" in refusal(
        "calibrate", folder, "--text", tmp_path / "no.txt", *out
    )
    assert "tokenizer could not be loaded" in refusal("calibrate", folder, "--text", text, *out)
    text.write_bytes(b"abc \xff\xfe")
    assert "byte 4 is not UTF-8" in refusal("calibrate", folder, "--text", text, *out)
    assert not (tmp_path / "a.safetensors").exists()


def test_import_names_what_is_wrong(folder, refusal, tmp_path):
    rotations = ("--keys", tmp_path / "k.pt", "--values", tmp_path / "v.pt")
    out = ("-o", tmp_path / "a.safetensors")
    assert "k.pt: no such file" in refusal("import-rotations", folder, *rotations, *out)
    (folder / "model.safetensors").write_bytes(b"broken")
    assert "could not be loaded" in refusal("import-rotations", folder, *rotations, *out)
    (folder / "config.json").write_text("{")
    assert "could not be loaded" in refusal("import-rotations", folder, *rotations, *out)


def test_calibrate_warns_of_an_artefact_among_the_weights(folder, tmp_path, monkeypatch, capfd):
    written = []

    class Artefact:
        def save(self, path):
            written.append(path)

    monkeypatch.setattr(
        "oscar_kv.transformers.calibrate_folder", lambda *_, **__: (Artefact(), ["a warning"])
    )
    for place, is_warned in ((folder, True), (tmp_path, False)):
        out = str(place / "a.safetensors")
        assert main(["calibrate", str(folder), "--text", "text.txt", "-o", out]) == 0
        said = capfd.readouterr().err
        assert ("vLLM takes every .safetensors file there" in " ".join(said.split())) == is_warned
        assert "warning: a warning" in said
        assert written.pop() == out
