"""How near one engine's answers are to those of another cache, and of itself: on any device.

Usage: quality.py CASE_JSON RESULT_JSON

The case: model (folder); engine (arguments of vllm.LLM); kv (artefact or method; null: vLLM's own
cache); text (file), text_tokens (of it, whose logits are compared); step_tokens (of those, most in
a step; null: as the engine has it); references (name → npy of logits to take the KL from); keep
(npy to write logits to, or null); questions; hits (prompts of which hits and misses are compared);
recompute (as the plugin's setting).
"""

import dataclasses
import json
import os
import sys
import time
from collections.abc import Sequence

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import torch
from compare import kl_of, kl_statistics
from vllm import LLM, RequestOutput, SamplingParams

# Of hits: a shared beginning, and what follows it; in tokens.
SHARED, OTHER, OWN = 640, 400, 60
COMPARED = 16  # tokens of answers


class Logits:
    """Keeps what the model's last layer gives."""

    def __init__(self, llm: LLM) -> None:
        self._llm, self.parts = llm, []
        llm.apply_model(self._wrap)

    def _wrap(self, model) -> None:
        original = model.compute_logits

        def compute_logits(hidden, *arguments, **keywords):
            result = original(hidden, *arguments, **keywords)
            self.parts.append(result.detach().float().cpu())
            return result

        model.compute_logits = compute_logits

    def of_prompt(self, tokens: Sequence[int], step_tokens: int | None = None) -> torch.Tensor:
        """At every position of the prompt but the last, [tokens − 1, vocabulary].

        step_tokens 1: by the steps of decoding, one token after the other.
        """
        parameters = SamplingParams(max_tokens=1, temperature=0.0)
        if step_tokens != 1:
            parameters.prompt_logprobs = 0
        with AtMost(self._llm, step_tokens):
            self._ask(tokens, parameters)
        rows = [part for part in self.parts if step_tokens == 1 or len(part) > 1]
        return torch.cat(rows)[: len(tokens) - 1]

    def of_answer(self, tokens: Sequence[int], step_tokens: int | None = None) -> "Answer":
        """Greedy."""
        parameters = SamplingParams(max_tokens=COMPARED, temperature=0.0, ignore_eos=True)
        with AtMost(self._llm, step_tokens):
            output = self._ask(tokens, parameters)
        # A part for every step, so one for each token of the answer, at the end.
        ids = list(output.outputs[0].token_ids)
        return Answer(self.parts[-COMPARED][0], ids, output.num_cached_tokens)

    def _ask(self, tokens: Sequence[int], parameters: SamplingParams) -> RequestOutput:
        self.parts.clear()
        prompts = [{"prompt_token_ids": list(tokens)}]
        return self._llm.generate(prompts, parameters, use_tqdm=False)[0]


@dataclasses.dataclass(frozen=True)
class Answer:
    """first: logits of its first token. cached: tokens of the prompt from the prefix cache."""

    first: torch.Tensor
    tokens: list[int]
    cached: int


class AtMost:
    """While it lasts, a step computes at most so many tokens; None: as before."""

    def __init__(self, llm: LLM, step_tokens: int | None) -> None:
        self._scheduler = llm.llm_engine.engine_core.engine_core.scheduler
        self._tokens = step_tokens

    def __enter__(self) -> None:
        self._before = self._scheduler.max_num_scheduled_tokens
        if self._tokens is not None:
            self._scheduler.max_num_scheduled_tokens = self._tokens

    def __exit__(self, *_: object) -> None:
        self._scheduler.max_num_scheduled_tokens = self._before


KINDS = ("again", "turn", "shared")


def compare_hits(llm: LLM, logits: Logits, text: list[int], count: int) -> dict[str, object]:
    """Answers to prompts that begin with cached pages, against those to the same prompts without.

    again: the same prompt is asked again. turn: a conversation goes on. shared: after a beginning
    that another request computed, which then went on for longer than a window. For each: KL of the
    answer's first token from that of a miss in steps of 64 tokens, which attend to what is stored,
    as hits do, and from that of a miss in one step; how many answers are the same; how many tokens
    were cached. Means of `count` prompts. between_misses: KL of the two kinds of misses.
    """
    results: dict[str, object] = {"prompts": count}
    between = []
    stride = (len(text) - SHARED - OTHER - OWN) // count
    for kind in KINDS:
        kl, kl_of_one_step, cached, same = [], [], 0, 0
        for i in range(count):
            part, own = text[i * stride :], text[-(i + 1) * OWN :][:OWN]
            begin, other = part[:SHARED], part[SHARED : SHARED + OTHER]
            prompt = begin + own
            llm.reset_prefix_cache()
            if kind == "again":
                logits.of_answer(prompt)
            elif kind == "turn":
                prompt = begin + logits.of_answer(begin).tokens + own
            else:
                logits.of_answer(begin + other)
            hit = logits.of_answer(prompt)
            llm.reset_prefix_cache()
            miss = logits.of_answer(prompt, 64)
            llm.reset_prefix_cache()
            one_step = logits.of_answer(prompt)
            cached += hit.cached
            same += hit.tokens == miss.tokens
            kl.append(float(kl_of(miss.first, hit.first)))
            kl_of_one_step.append(float(kl_of(one_step.first, hit.first)))
            between.append(float(kl_of(one_step.first, miss.first)))
        results[kind] = {
            "kl": float(np.mean(kl)),
            "kl_of_one_step": float(np.mean(kl_of_one_step)),
            "same_answers": same,
            "cached_tokens": cached / count,
        }
    results["between_misses"] = float(np.mean(between))
    return results


def run_case(case: dict) -> dict[str, object]:
    began = time.time()
    arguments = {"model": case["model"], "enable_prefix_caching": True, **case["engine"]}
    if case["kv"] is not None:
        from oscar_kv.vllm.plugin import registered_name

        arguments["attention_backend"] = registered_name()
        ours = {"kv": case["kv"], "recompute": case["recompute"]}
        arguments["additional_config"] = {"oscar": ours}
    llm = LLM(**arguments)
    cache = llm.llm_engine.vllm_config.cache_config
    result: dict[str, object] = {
        "kv": None if case["kv"] is None else os.path.basename(case["kv"]),
        "start_s": round(time.time() - began, 1),
        "kv_tokens": cache.num_gpu_blocks * cache.block_size,
        "block_size": cache.block_size,
    }
    logits = Logits(llm)
    with open(case["text"], encoding="utf-8") as file:
        text = llm.get_tokenizer().encode(file.read())
    if case["text_tokens"]:
        rows = logits.of_prompt(text[: case["text_tokens"]], case["step_tokens"])
        if case["keep"]:
            np.save(case["keep"], rows.half().numpy())
        result["kl"] = {
            name: kl_statistics(np.load(path, mmap_mode="r"), rows.numpy())
            for name, path in case["references"].items()
        }
    if case["hits"]:
        result["hits"] = compare_hits(llm, logits, text, case["hits"])
    if case["questions"]:
        chats = [[{"role": "user", "content": question}] for question in case["questions"]]
        outputs = llm.chat(chats, SamplingParams(max_tokens=24, temperature=0.0), use_tqdm=False)
        result["answers"] = [output.outputs[0].text.strip() for output in outputs]
    if case["kv"] is not None:
        from oscar_kv.vllm.worker import current_worker

        worker = current_worker()
        worker.not_finite.check()
        result["method"] = str(worker.served).rpartition(":")[2].strip()
        result["steps_with_nan"] = worker.not_finite.num_steps
    result["wall_s"] = round(time.time() - began, 1)
    return result


def main() -> None:
    with open(sys.argv[1], encoding="utf-8") as file:
        case = json.load(file)
    result = run_case(case)
    with open(sys.argv[2], "w", encoding="utf-8") as file:
        json.dump(result, file, indent=1)


if __name__ == "__main__":
    main()
