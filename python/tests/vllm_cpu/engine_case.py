"""Runs one vLLM engine on CPU, in a process of its own, and writes what it answered.

Usage: engine_case.py CASE_JSON RESULT_JSON

The case: model (folder); kv (artefact or method; null: vLLM's own cache); text (file), text_tokens;
chunk (most tokens a step); references (name → npy of logits to take the KL from); keep (npy to
write logits to, or null); questions; prefix_tokens (of a prompt that is asked twice; 0: none).
"""

import json
import os
import sys
import time

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import torch
from vllm import LLM, SamplingParams

MAX_LENGTH = 2304


class Logits:
    """Keeps what the model's last layer gives for every position of a prompt."""

    def __init__(self, llm: LLM) -> None:
        self.parts: list[torch.Tensor] = []
        llm.apply_model(self._wrap)

    def _wrap(self, model) -> None:
        original = model.compute_logits

        def compute_logits(hidden, *arguments, **keywords):
            result = original(hidden, *arguments, **keywords)
            self.parts.append(result.detach().float().clone())
            return result

        model.compute_logits = compute_logits

    def of_prompt(self, llm: LLM, tokens: list[int]) -> torch.Tensor:
        """Logits at every position of the prompt but the last, [tokens − 1, vocabulary]."""
        self.parts.clear()
        parameters = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=0)
        llm.generate([{"prompt_token_ids": tokens}], parameters, use_tqdm=False)
        rows = [part for part in self.parts if len(part) > 1]
        return torch.cat(rows)[: len(tokens) - 1]


def kl_statistics(reference: np.ndarray, logits: torch.Tensor) -> dict[str, float]:
    """Of the second half: KL in nats a token, mean, 10 % trimmed mean, median."""
    half = len(logits) // 2
    values = []
    for begin in range(half, len(logits), 64):
        p = torch.from_numpy(reference[begin : begin + 64].astype(np.float32)).log_softmax(-1)
        q = logits[begin : begin + 64].log_softmax(-1)
        values.append((p.exp() * (p - q)).sum(-1))
    kl = torch.cat(values).clamp(min=0).double().sort().values
    cut = len(kl) // 10
    return {
        "mean": float(kl.mean()),
        "trimmed": float(kl[cut : len(kl) - cut].mean()),
        "median": float(kl.median()),
        "most": float(kl[-1]),
    }


def ask_twice(llm: LLM, tokens: list[int]) -> dict[str, object]:
    """The same prompt before and after its pages are in the prefix cache."""
    parameters = SamplingParams(max_tokens=24, temperature=0.0, logprobs=0)
    runs = []
    for _ in range(2):
        (output,) = llm.generate([{"prompt_token_ids": tokens}], parameters, use_tqdm=False)
        answer = output.outputs[0]
        first = next(iter(answer.logprobs[0].values())).logprob
        runs.append(
            {
                "tokens": list(answer.token_ids),
                "cached": output.num_cached_tokens,
                "first_logprob": first,
            }
        )
    return {"miss": runs[0], "hit": runs[1]}


def main() -> None:
    with open(sys.argv[1], encoding="utf-8") as file:
        case = json.load(file)
    began = time.time()
    arguments = {
        "model": case["model"],
        "dtype": "float32",
        "max_model_len": MAX_LENGTH,
        "max_num_seqs": 4,
        "max_num_batched_tokens": case["chunk"],
        "enforce_eager": True,
        "kv_cache_memory_bytes": 1 << 28,
        "enable_prefix_caching": True,
        "distributed_executor_backend": "uni",
        "disable_log_stats": True,
    }
    if case["kv"] is not None:
        arguments["attention_backend"] = "OSCAR"
        arguments["additional_config"] = {"oscar": {"kv": case["kv"]}}
    llm = LLM(**arguments)
    cache = llm.llm_engine.vllm_config.cache_config
    result: dict[str, object] = {
        "start_s": round(time.time() - began, 1),
        "kv_tokens": cache.num_gpu_blocks * cache.block_size,
    }
    tokenizer = llm.get_tokenizer()
    with open(case["text"], encoding="utf-8") as file:
        text = tokenizer.encode(file.read())
    if case["text_tokens"]:
        logits = Logits(llm).of_prompt(llm, text[: case["text_tokens"]])
        if case["keep"]:
            np.save(case["keep"], logits.half().numpy())
        result["kl"] = {
            name: kl_statistics(np.load(path, mmap_mode="r"), logits)
            for name, path in case["references"].items()
        }
    if case["prefix_tokens"]:
        result["twice"] = ask_twice(llm, text[-case["prefix_tokens"] :])
    if case["questions"]:
        chats = [[{"role": "user", "content": question}] for question in case["questions"]]
        parameters = SamplingParams(max_tokens=24, temperature=0.0)
        outputs = llm.chat(chats, parameters, use_tqdm=False)
        result["answers"] = [output.outputs[0].text.strip() for output in outputs]
    result["wall_s"] = round(time.time() - began, 1)
    with open(sys.argv[2], "w", encoding="utf-8") as file:
        json.dump(result, file, indent=1)


if __name__ == "__main__":
    main()
