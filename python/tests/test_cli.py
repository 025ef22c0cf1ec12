import os
import pathlib
import subprocess
import sys

import oscar_kv
import pytest

PACKAGE = pathlib.Path(oscar_kv.__file__).parent.parent


def run(*arguments):
    environment = os.environ | {"PYTHONPATH": str(PACKAGE)}
    command = [sys.executable, "-m", "oscar_kv", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


def refused(*arguments):
    done = run(*arguments)
    assert done.returncode == 1, done.stderr
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("error: ")
    return lines[0]


def test_help_and_version():
    shown = run("--help")
    assert shown.returncode == 0
    for command in ("calibrate", "inspect", "convert", "import-rotations"):
        assert command in shown.stdout
        assert run(command, "--help").returncode == 0
    assert run("--version").stdout.strip() == f"oscar-kv {oscar_kv.__version__}"


def test_inspect_and_convert(artefact, tmp_path):
    path, converted = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    artefact.save(path)
    shown = run("inspect", path)
    assert shown.returncode == 0
    assert "2 layers, 4 query and 2 KV heads of 64" in shown.stdout
    assert "half_split 32 pairs" in shown.stdout
    assert run("convert", path, "--pairing", "interleaved", "-o", converted).returncode == 0
    assert "interleaved 32 pairs" in run("inspect", converted).stdout


def test_bad_input_is_one_line(artefact, tmp_path):
    assert "nothing.safetensors" in refused("inspect", tmp_path / "nothing.safetensors")
    path = tmp_path / "a.safetensors"
    artefact.save(path)
    line = refused("convert", path, "--pairing", "interleaved", "-o", tmp_path / "no" / "b")
    assert f"there is no folder {tmp_path / 'no'}" in line
    notes = tmp_path / "notes.txt"
    notes.write_text("mine")
    convert = ("convert", path, "--pairing", "interleaved", "-o")
    assert "is no artefact, so it is not replaced" in refused(*convert, notes)
    assert notes.read_text() == "mine"
    assert "is a folder" in refused(*convert, tmp_path)
    assert run(*convert, path).returncode == 0  # an artefact is replaced
    assert run("convert", path, "--pairing", "sideways", "-o", path).returncode == 2


@pytest.mark.parametrize("command", ["calibrate", "import-rotations"])
def test_without_torch_it_says_what_is_missing(command, tmp_path):
    try:
        import torch  # noqa: F401
    except ImportError:
        pass
    else:
        pytest.skip("torch is here")
    more = {
        "calibrate": ("--text", tmp_path / "t"),
        "import-rotations": ("--keys", "k.pt", "--values", "v.pt"),
    }[command]
    assert "torch is missing" in refused(command, tmp_path, "-o", tmp_path / "o", *more)
