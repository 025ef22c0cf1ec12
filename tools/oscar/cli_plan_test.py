"""`oscar plan`: its bytes are those that the plugin reserves; what it cannot plan it refuses."""

import json
import struct
import unittest

from cli_case import CliTest, main
from tiny_gguf import UINT32, TinyModel, key

QWEN3 = {
    "model_type": "qwen3",
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "hidden_size": 4096,
    "max_position_embeddings": 40960,
}


class Plan(CliTest):
    def plan(self, model, *more):
        path = self.folder / "plan.json"
        self.good("plan", "-m", model, *more, "--json", str(path))
        return json.loads(path.read_text())

    def config(self, **changes):
        fields = {k: v for k, v in {**QWEN3, **changes}.items() if v != "gone"}
        return self.write("config.json", json.dumps(fields))

    def reserved(self, model, ctx, kvs):
        """What the plugin says it reserved, by --kv."""
        path = self.folder / "run.json"
        options = [part for kv in kvs for part in ("--kv", kv)]
        self.good(*self.ask(model, "-c", str(ctx), *options, "--json", str(path)))
        results = json.loads(path.read_text())["results"]
        return {result["kv"]: result["kv_bytes_reserved"] for result in results}

    def check(self, model, ctx, kvs):
        options = [part for kv in kvs for part in ("--kv", kv)]
        planned = {
            row["kv"]: row["bytes"] for row in self.plan(model, "-c", str(ctx), *options)["results"]
        }
        self.assertEqual(planned, self.reserved(model, ctx, kvs))

    def test_the_plugin_reserves_what_was_planned(self):
        kvs = [
            "naive:k16v16",
            "naive:k16v2",
            "quarot",
            "quarot:k3v2",
            "quarot:k4v4,group=32",
            "naive:k2v2,sink=0,recent=0",
            "quarot:sink=700,recent=800",
        ]
        self.check(self.tiny(), 1000, kvs)
        self.check(self.tiny(head_dim=80, layers=5), 300, kvs[:4])

    def test_sliding_windows(self):
        model = self.tiny(architecture="gemma3", layers=7)
        self.check(model, 2000, ["quarot", "quarot:k3v2,sink=4,recent=32", "naive:k16v16"])
        groups = self.plan(model, "-c", "2000", "--kv", "quarot")["results"][0]["groups"]
        self.assertEqual([group["layers"] for group in groups], [[5], [0, 1, 2, 3, 4, 6]])
        # 128 of the window and 512 of a batch, in multiples of 256.
        self.assertEqual([group["cells"] for group in groups], [2048, 768])

    def test_an_artefact(self):
        model, artefact = self.tiny(), str(self.folder / "a.safetensors")
        text = self.write("text.txt", self.words(2000))
        self.good("calibrate", "-m", model, "-f", text, "--tokens", "512", "-o", artefact)
        self.check(model, 1000, [artefact, artefact + ":k3v2"])
        bits = str(self.folder / "b.safetensors")
        options = ["--tokens", "1100", "--bits", "2.75", "-o", bits]
        self.good("calibrate", "-m", model, "-f", text, *options)
        self.check(model, 1000, [bits, bits + ":bits=3.5", bits + ":k3v2"])
        # Before there is one, the method's bytes are the same.
        rows = self.plan(model, "-c", "1000", "--kv", "oscar-plus", "--kv", artefact)["results"]
        self.assertEqual(rows[0]["bytes"], rows[1]["bytes"])
        other = self.write("other.gguf", TinyModel(head_dim=32).bytes())
        self.refused("plan", "-m", other, "--kv", artefact, names=["head_dim_k 32", "64"])

    def test_llamas_own_types(self):
        # 2 layers, K and V, 2 KV heads of 64, 1024 cells.
        values = 2 * 2 * 128 * 1024
        rows = self.plan(self.tiny(), "-c", "1000")["results"]
        self.assertEqual(
            [row["bytes"] for row in rows[:3]], [values * 2, values * 34 // 32, values * 18 // 32]
        )

    def test_figures_of_a_public_report(self):
        """36 layers of 8 KV heads of 128; what a cache of two forms takes, and the codes of the 320
        tokens that have both here; pages of 64 tokens and contexts of 256."""
        for tokens, alone in ((1024, 61784064), (4096, 125485056), (32768, 720027648)):
            row = self.plan(self.config(), "-c", str(tokens), "--kv", "quarot")["results"][0]
            self.assertEqual(row["bytes"], alone + 36 * 2 * 8 * 320 * 36)
        f16 = self.plan(self.config(), "-c", "32768", "--kv", "f16")["results"][0]
        self.assertEqual(f16["bytes"], 4831838208)

    def test_what_fits(self):
        document = self.plan(self.config(), "-c", "4096", "--memory", "1.5G", "--parallel", "2")
        for row in document["results"]:
            fits = row["max_context_tokens"]
            self.assertEqual(fits % 256, 0)
            for tokens, inside in ((fits, True), (fits + 256, False)):
                if tokens > 40960:
                    continue
                again = self.plan(
                    self.config(), "-c", str(tokens), "--parallel", "2", "--kv", row["kv"]
                )
                self.assertEqual(again["results"][0]["bytes"] <= 3 << 29, inside, row["kv"])
        for text in ("2X", "-1", "0", "G", "1e40"):
            self.refused("plan", "-m", self.config(), "--memory", text, names=["memory", text])

    def test_configurations_with_windows(self):
        gemma = {"model_type": "gemma3_text", "sliding_window": 512, "sliding_window_pattern": 6}
        types = ["sliding_attention"] * 35 + ["full_attention"]
        for changes, full in (
            (gemma, 6),
            ({"model_type": "gemma2", "sliding_window": 4096}, 18),
            ({"model_type": "olmo3", "sliding_window": 4096, "layer_types": types}, 1),
            ({"sliding_window": 4096, "use_sliding_window": True}, 36),
            ({"model_type": "mistral", "sliding_window": 4096}, 36),
        ):
            groups = self.plan(self.config(**changes), "-c", "32768", "--kv", "f16")["results"][0][
                "groups"
            ]
            self.assertEqual(len(groups[0]["layers"]), full, changes)
        inner = {"model_type": "gemma3", "text_config": {**QWEN3, **gemma}}
        groups = self.plan(self.write("config.json", json.dumps(inner)), "--kv", "f16")
        self.assertEqual(len(groups["results"][0]["groups"]), 2)

    def test_heads_under_other_names(self):
        of_falcon = {"num_key_value_heads": "gone", "num_kv_heads": 32, "multi_query": True}
        of_glm = {"multi_query_attention": True, "multi_query_group_num": 2, "head_dim": "gone"}
        for changes, heads in (
            (of_falcon, 1),
            ({**of_falcon, "new_decoder_architecture": True}, 32),
            ({"num_key_value_heads": "gone"}, 32),
            ({**of_glm, "kv_channels": 128, "num_key_value_heads": "gone"}, 2),
            ({"architectures": ["Qwen3ForCausalLM"]}, 8),
        ):
            row = self.plan(self.config(**changes), "-c", "1024", "--kv", "f16")["results"][0]
            self.assertEqual(row["groups"][0]["num_kv_heads"], heads, changes)
            self.assertEqual(row["groups"][0]["head_dim_k"], 128, changes)
        glm = self.config(seq_length=8192, max_position_embeddings="gone")
        self.assertEqual(self.plan(glm, "--kv", "f16")["context_tokens"], 8192)

    def test_what_a_configuration_leaves_out_is_said(self):
        bare = self.config(max_position_embeddings="gone", model_type="\x1b[31mx\n")
        said = self.good("plan", "-m", bare, "--kv", "f16")
        self.assertNotIn("\x1b", said.out)
        self.assertIn("-c says another", said.err)
        said = self.good("plan", "-m", self.config(model_type="gone"), "--kv", "f16")
        self.assertIn("model_type not given", said.out)

    def test_all(self):
        said = self.good("plan", "-m", self.config(head_dim=80), "--kv", "f16", "--kv", "all")
        for name in ("q4_0", "oscar-plus:k3v2", "omniscale"):
            self.assertIn("\n" + name + " ", said.out)
        self.refused("bench", "attention", "--kv", "all", names=["all"])
        narrow = self.config(head_dim=72, num_key_value_heads=1)
        said = self.run_cli("plan", "-m", narrow, "-c", "1024", "--kv", "all")
        self.assertEqual(said.status, 1, said)
        self.assertIn("note: left out: kivi: ", said.err)
        self.assertTrue(said.err.splitlines()[-1].startswith("error: --kv all: "), said)

    def test_large_models_take_no_memory(self):
        heads = {"num_attention_heads": 4096, "num_key_value_heads": 4096, "head_dim": 256}
        large = self.config(num_hidden_layers=1024, **heads)
        self.assert_small(self.good("plan", "-m", large, "-c", "1024", "--kv", "all"))
        # Nulls are as good as fields left out.
        nothing = {"layer_types": None, "architectures": None, "text_config": None}
        self.good("plan", "-m", self.config(**nothing), "--kv", "f16")

    def test_configurations_that_are_refused(self):
        for changes, names in (
            ({"kv_lora_rank": 512}, ["qwen3", "MLA"]),
            ({"model_type": "jamba", "attn_layer_period": 8}, ["jamba", "attn_layer_period"]),
            ({"layer_types": ["linear_attention"] * 36}, ["layer 0", "linear_attention"]),
            ({"layer_types": ["full_attention"]}, ["layer_types", "1", "36"]),
            ({"model_type": "new", "sliding_window": 100}, ["new", "100"]),
            ({"num_hidden_layers": "gone"}, ["num_hidden_layers"]),
            ({"num_hidden_layers": -1}, ["num_hidden_layers", "-1"]),
            ({"num_key_value_heads": 1.5}, ["num_key_value_heads", "1.5"]),
            ({"is_encoder_decoder": True}, ["encoder"]),
            ({"full_attention_interval": 4}, ["recurrent", "full_attention_interval"]),
            ({"hybrid_override_pattern": "M-*"}, ["recurrent", "hybrid_override_pattern"]),
            ({"attn_layer_indices": [9, 18]}, ["recurrent", "attn_layer_indices"]),
            ({"block_types": ["recurrent", "attention"]}, ["recurrent", "block_types"]),
            ({"state_size": 16}, ["recurrent", "state_size"]),
            ({"architectures": ["BertForMaskedLM"]}, ["BertForMaskedLM"]),
            ({"architectures": ["SiglipVisionModel"]}, ["SiglipVisionModel"]),
            ({"multi_query_attention": True}, ["multi_query_group_num"]),
            ({"layer_types": "x"}, ["layer_types", "a list"]),
            ({"multi_query": "yes"}, ["multi_query", "yes", "true or false"]),
            ({"text_config": [1]}, ["text_config", "[1]", "an object"]),
            ({"model_type": 5}, ["model_type", "5", "a text"]),
            ({"architectures": {}}, ["architectures", "{}", "a list of names"]),
            ({"is_encoder_decoder": 1}, ["is_encoder_decoder", "true or false"]),
            ({"num_key_value_heads": 4097}, ["num_key_value_heads", "4097", "4096"]),
        ):
            self.refused("plan", "-m", self.config(**changes), "--kv", "f16", names=names)
        self.refused("plan", "-m", self.config(head_dim=72), names=["head size 72", "multiples"])
        self.refused("plan", "-m", self.write("c.json", "{"), names=["c.json"])
        self.refused("plan", "-m", self.write("c.json", ""), names=["c.json"])
        large = self.write("c.bin", "x" * (2 << 20))
        self.refused("plan", "-m", large, names=["c.bin", "neither", "'xxxx'"])
        self.refused("plan", "-m", "none.gguf", names=["none.gguf"])

    def test_models_that_are_refused(self):
        for extra, names in (
            (key("llama.attention.kv_lora_rank", UINT32, 512), ["llama", "MLA"]),
            (key("llama.ssm.state_size", UINT32, 16), ["llama", "llama.ssm.state_size"]),
            (key("llama.attention.indexer.head_count", UINT32, 4), ["llama", "indexer"]),
        ):
            model = TinyModel()
            model.extra_keys = [extra]
            self.refused("plan", "-m", self.write("m.gguf", model.bytes()), names=names)
        cut = TinyModel().bytes()[:-100]
        self.assert_small(
            self.refused("plan", "-m", self.write("m.gguf", cut), names=["truncated"])
        )
        self.refused(
            "plan", "-m", self.write("m.gguf", b"GGUF" + struct.pack("<I", 9)), names=["version 9"]
        )


if __name__ == "__main__":
    unittest.TestCase.maxDiff = None
    main()
