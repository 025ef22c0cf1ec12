"""Layers on a GPU, made without one: what stands for the kernels takes calls as they would."""

import collections
import inspect

import oscar_kv
import torch
from oscar_kv.serving import open_method
from oscar_kv.serving.not_finite import NotFinite
from oscar_kv.serving.windows import Windows


def test_layers_are_made_as_their_parts_want_them(monkeypatch):
    from oscar_kv.serving import cuda_layers

    made = []

    class Recorder:
        """Stands for a class or function; its calls have to fit the real one."""

        def __init__(self, name):
            self.name = name
            self.signature = inspect.signature(getattr(cuda_layers, name))
            self.sizes, self.kernel, self.num_bytes = [], "kernel", 0

        def __call__(self, *arguments, **keywords):
            self.signature.bind(*arguments, **keywords)
            made.append(self.name)
            return self

        def __getitem__(self, size):
            self.sizes.append(size)

    recorders = {}
    for name in ("CudaLibrary", "Plans", "Prefill", "CudaLayer", "check_cuda_layer"):
        recorders[name] = Recorder(name)
        monkeypatch.setattr(cuda_layers, name, recorders[name])
    monkeypatch.setattr(cuda_layers, "NotFinite", lambda layers, device: NotFinite(layers))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    shape = oscar_kv.ModelShape(2, 2, 1, 64, 64)
    served = open_method("quarot:sink=0,recent=0", "llama", shape)
    indices, dense = {"a": 0, "b": 1}, recorders["Prefill"]
    layers = cuda_layers.make_cuda_layers(served, Windows.of(0, 0), indices, 3, 99, 3, dense)
    assert sorted(layers.by_key) == ["a", "b"]
    assert layers.not_finite.layers == [0, 1]
    assert "attention kernel kernel" in str(layers)
    assert collections.Counter(made) == {"CudaLayer": 2} | dict.fromkeys(
        ("CudaLibrary", "Plans", "Prefill", "check_cuda_layer"), 1
    )
    assert recorders["Plans"].sizes == [1, 2, 3]


def test_attention_of_prompts_is_given_bounds(monkeypatch):
    from oscar_kv.serving.cuda_layers import causal_attention

    monkeypatch.setattr(torch.Tensor, "cuda", lambda self, non_blocking: self)
    calls = []
    attend = causal_attention(lambda *arguments: calls.append(arguments))
    q, keys = torch.zeros(3, 2, 64), torch.zeros(70, 1, 64)
    attend(q, keys, keys, 0.5, q)
    *_, scale, out, bounds = calls[0]
    assert scale == 0.5
    assert out is q
    assert [bounds[f"cu_seqlens_{x}"].tolist() for x in "qk"] == [[0, 3], [0, 70]]
    assert [bounds[f"max_seqlen_{x}"] for x in "qk"] == [3, 70]
