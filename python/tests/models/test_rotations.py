import numpy as np
import oscar_kv
import pytest
import torch
from conftest import SHAPE, make_rows
from oscar_kv.rotations import import_rotations


def rotation(seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.linalg.qr(torch.randn(64, 64, generator=generator))[0]


def write(path, rotations, **more):
    """A file as the authors' scripts write it."""
    layers = {
        layer: {"layer_id": layer, "rotation": r, "eigenvalues": torch.arange(64.0)}
        for layer, r in enumerate(rotations)
    }
    content = {"format_version": 1, "objective": "qqt_r_h_pbr", "source_grouping": "layer"}
    torch.save(content | {"layers": layers} | more, path)
    return path


def test_one_rotation_a_layer(tmp_path):
    matrices = [rotation(seed) for seed in range(4)]
    keys = write(tmp_path / "k.pt", matrices[:2])
    values = write(tmp_path / "v.pt", matrices[2:])
    artefact = import_rotations(keys, values, SHAPE, architecture="qwen3", weights_hash="x")
    assert artefact.method == "oscar"
    np.testing.assert_array_equal(artefact.tensors["layers.1.k_transform"][0], matrices[1])
    np.testing.assert_array_equal(artefact.tensors["layers.1.k_transform"][1], matrices[1])
    np.testing.assert_array_equal(artefact.tensors["layers.0.v_clip.2"], np.float32([0.92, 0.92]))
    path = tmp_path / "a.safetensors"
    artefact.save(path)
    codec = oscar_kv.Method(path).codec(0)
    rows = make_rows(1, 50, 2)
    decoded = codec.decode_values(codec.encode_values(rows))
    assert np.linalg.norm(decoded - rows) < 0.5 * np.linalg.norm(rows)


@pytest.mark.parametrize("stacked", [True, False])
def test_one_rotation_a_head(tmp_path, stacked):
    heads = [[rotation(10 * layer + head) for head in range(2)] for layer in range(2)]
    path = tmp_path / "k.pt"
    if stacked:
        write(path, [torch.stack(pair) for pair in heads], format_version=2)
    else:
        layers = {
            str(layer): {"heads": {head: {"rotation": r} for head, r in enumerate(pair)}}
            for layer, pair in enumerate(heads)
        }
        torch.save({"format_version": 2, "layers": layers}, path)
    artefact = import_rotations(path, path, SHAPE)
    np.testing.assert_array_equal(artefact.tensors["layers.1.v_transform"][1], heads[1][1])


def test_bad_files_are_refused_in_one_line(tmp_path):
    good = write(tmp_path / "good.pt", [rotation(1), rotation(2)])

    def refused(kind, match, keys, values=good, model=SHAPE, **more):
        with pytest.raises(kind, match=match) as refusal:
            import_rotations(keys, values, model, **more)
        assert "\n" not in str(refusal.value)

    refused(oscar_kv.NotFoundError, "none.pt", tmp_path / "none.pt")
    (tmp_path / "text.pt").write_text("hello")
    refused(oscar_kv.CorruptError, "text.pt", tmp_path / "text.pt")
    other = write(tmp_path / "other.pt", [rotation(1), rotation(2)], format_version=3)
    refused(oscar_kv.MismatchError, "format_version is 3", other)
    few = write(tmp_path / "few.pt", [rotation(1)])
    refused(oscar_kv.MismatchError, "1 layers; this model has 2", few, few)
    refused(oscar_kv.MismatchError, "they must be the same", few)
    wide = oscar_kv.ModelShape(2, 4, 2, 128, 128)
    refused(oscar_kv.MismatchError, r"shape \[64, 64\]", good, model=wide)
    bent = write(tmp_path / "bent.pt", [rotation(1) * 1.1, rotation(2)])
    refused(oscar_kv.CorruptError, "not orthogonal", bent)
    refused(oscar_kv.InvalidArgumentError, "k_clip is 0", good, k_clip=0)
    torch.save([1, 2], tmp_path / "list.pt")
    refused(oscar_kv.CorruptError, "no 'layers'", tmp_path / "list.pt")
