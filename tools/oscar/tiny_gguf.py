"""Writes small GGUF models for tests: byte-level vocabulary, random weights, maybe experts."""

import random
import struct

UINT8, UINT32, FLOAT32, STRING, ARRAY, INT32 = 0, 4, 6, 8, 9, 5
F32 = 0
ALIGNMENT = 32


def gguf_text(text):
    data = text if isinstance(text, bytes) else text.encode()
    return struct.pack("<Q", len(data)) + data


def key(name, kind, value):
    packed = {UINT32: "<I", INT32: "<i", FLOAT32: "<f", UINT8: "<B"}
    body = gguf_text(value) if kind == STRING else struct.pack(packed[kind], value)
    return gguf_text(name) + struct.pack("<I", kind) + body


def text_list(name, values):
    body = b"".join(gguf_text(value) for value in values)
    return gguf_text(name) + struct.pack("<IIQ", ARRAY, STRING, len(values)) + body


def int_list(name, values):
    body = struct.pack(f"<{len(values)}i", *values)
    return gguf_text(name) + struct.pack("<IIQ", ARRAY, INT32, len(values)) + body


def byte_alphabet():
    """The characters of a byte-level vocabulary: printable bytes stand for themselves."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters, extra = {}, 0
    for byte in range(256):
        if byte in plain:
            letters[byte] = chr(byte)
        else:
            letters[byte] = chr(256 + extra)
            extra += 1
    return [letters[byte] for byte in range(256)]


class TinyModel:
    """A model of a few hundred kilobytes. Fields may be changed before `bytes()`.

    architecture: "llama", or "gemma3", which has sliding windows in five of six layers.
    """

    def __init__(
        self, num_experts=0, head_dim=64, seed=1, broken_weight=None, architecture="llama", layers=2
    ):
        self.architecture, self.layers = architecture, layers
        self.width, self.heads, self.kv_heads, self.window = 128, 4, 2, 128
        self.head_dim, self.feed_forward, self.context = head_dim, 64, 2048
        self.num_experts, self.seed, self.broken_weight = num_experts, seed, broken_weight
        self.version, self.extra_keys = 3, []
        self.tokens = [*byte_alphabet(), "th", "<s>", "</s>"]

    def keys(self):
        name = self.architecture
        keys = [
            key("general.architecture", STRING, name),
            key("general.name", STRING, "tiny"),
            key(f"{name}.block_count", UINT32, self.layers),
            key(f"{name}.context_length", UINT32, self.context),
            key(f"{name}.embedding_length", UINT32, self.width),
            key(f"{name}.feed_forward_length", UINT32, self.feed_forward),
            key(f"{name}.attention.head_count", UINT32, self.heads),
            key(f"{name}.attention.head_count_kv", UINT32, self.kv_heads),
            key(f"{name}.attention.key_length", UINT32, self.head_dim),
            key(f"{name}.attention.value_length", UINT32, self.head_dim),
            key(f"{name}.rope.dimension_count", UINT32, self.head_dim),
            key(f"{name}.attention.layer_norm_rms_epsilon", FLOAT32, 1e-5),
            key("tokenizer.ggml.model", STRING, "gpt2"),
            key("tokenizer.ggml.pre", STRING, "gpt-2"),
            text_list("tokenizer.ggml.tokens", self.tokens),
            int_list("tokenizer.ggml.token_type", [1] * (len(self.tokens) - 2) + [3, 3]),
            text_list("tokenizer.ggml.merges", ["t h"]),
            key("tokenizer.ggml.bos_token_id", UINT32, len(self.tokens) - 2),
            key("tokenizer.ggml.eos_token_id", UINT32, len(self.tokens) - 1),
        ]
        if self.num_experts:
            keys.append(key(f"{name}.expert_count", UINT32, self.num_experts))
            keys.append(key(f"{name}.expert_used_count", UINT32, 2))
        if name == "gemma3":
            keys.append(key(f"{name}.attention.sliding_window", UINT32, self.window))
        return keys + self.extra_keys

    def tensors(self):
        """Name and dimensions, the first one running fastest."""
        width, vocab = self.width, len(self.tokens)
        q_width, kv_width = self.heads * self.head_dim, self.kv_heads * self.head_dim
        yield "token_embd.weight", [width, vocab]
        yield "output_norm.weight", [width]
        yield "output.weight", [width, vocab]
        for layer in range(self.layers):
            prefix = f"blk.{layer}."
            yield prefix + "attn_norm.weight", [width]
            yield prefix + "attn_q.weight", [width, q_width]
            yield prefix + "attn_k.weight", [width, kv_width]
            yield prefix + "attn_v.weight", [width, kv_width]
            yield prefix + "attn_output.weight", [q_width, width]
            yield prefix + "ffn_norm.weight", [width]
            if self.architecture == "gemma3":
                yield prefix + "attn_q_norm.weight", [self.head_dim]
                yield prefix + "attn_k_norm.weight", [self.head_dim]
                yield prefix + "post_attention_norm.weight", [width]
                yield prefix + "post_ffw_norm.weight", [width]
            if self.num_experts:
                yield prefix + "ffn_gate_inp.weight", [width, self.num_experts]
                yield prefix + "ffn_gate_exps.weight", [width, self.feed_forward, self.num_experts]
                yield prefix + "ffn_down_exps.weight", [self.feed_forward, width, self.num_experts]
                yield prefix + "ffn_up_exps.weight", [width, self.feed_forward, self.num_experts]
            else:
                yield prefix + "ffn_gate.weight", [width, self.feed_forward]
                yield prefix + "ffn_down.weight", [self.feed_forward, width]
                yield prefix + "ffn_up.weight", [width, self.feed_forward]

    def weights(self, name, dims, rng):
        count = 1
        for dim in dims:
            count *= dim
        if "norm" in name:
            values = [1.0] * count
        else:
            scale = 1.0 / dims[0] ** 0.5
            values = [rng.uniform(-2.0, 2.0) * scale for _ in range(count)]
        if name == self.broken_weight:
            values[0] = float("nan")
        return struct.pack(f"<{count}f", *values)

    def bytes(self):
        rng = random.Random(self.seed)
        keys = self.keys()
        tensors = list(self.tensors())
        infos, data = b"", b""
        for name, dims in tensors:
            infos += gguf_text(name) + struct.pack("<I", len(dims))
            infos += struct.pack(f"<{len(dims)}Q", *dims) + struct.pack("<IQ", F32, len(data))
            data += self.weights(name, dims, rng)
            data += b"\0" * (-len(data) % ALIGNMENT)
        head = b"GGUF" + struct.pack("<IQQ", self.version, len(tensors), len(keys))
        head += b"".join(keys) + infos
        return head + b"\0" * (-len(head) % ALIGNMENT) + data
