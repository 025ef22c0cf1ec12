"""Two GPUs against one: the same model, artefact and prompt, in vLLM with tensor parallel 1 and 2.

Usage: tensor_parallel.py --out RESULT_JSON [--work FOLDER] [--layers N] [--sizes 1 2] [--seconds S]

The model is random and small; its artefact is calibrated here, with matrices of their own for every
KV head. A prompt is computed in steps of STEP tokens, so that its tokens attend to what is stored,
and answered from CUDA graphs. Compared are what the keys and values of each KV head are coded with,
which must be the same bytes; and the logarithm of the probability of each token of the prompt, and
of an answer's tokens as long as they are the same. Sums over two GPUs round otherwise, and a code
that flips for it weighs more than the rounding: on average at most ALLOWED of what codes change at
all (one GPU, against BF16). No row may hold NaN or Inf.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import time

SETTINGS = {
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    "VLLM_HOST_IP": "127.0.0.1",
    "GLOO_SOCKET_IFNAME": "lo",
    "NCCL_SOCKET_IFNAME": "lo",
    "NCCL_NVLS_ENABLE": "0",  # hosts that are shared: no NVLink multicast
    "VLLM_ALLREDUCE_USE_SYMM_MEM": "0",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # one process fewer that imports everything
    "VLLM_ALLOW_INSECURE_SERIALIZATION": "1",  # workers are asked by a function
}
VOCABULARY, HEADS, KV_HEADS = 2048, 16, 4
PROMPT, STEP, NEW = 900, 128, 48
CALIBRATION = 2048
SEED = 1
ALLOWED = 0.5


def make_model(folder: pathlib.Path, artefact_path: pathlib.Path, layers: int) -> None:
    """A random model in `folder`, and its artefact; vLLM takes every file of weights there."""
    import torch
    from oscar_kv.transformers.calibration import calibrate
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(SEED)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=1024,
        intermediate_size=2048,
        num_hidden_layers=layers,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        head_dim=128,
        max_position_embeddings=4096,
        initializer_range=0.06,
        tie_word_embeddings=False,
        bos_token_id=1,
        eos_token_id=2,
    )
    model = Qwen3ForCausalLM(config).bfloat16()
    model.save_pretrained(folder)
    text = tokens_of(CALIBRATION, SEED + 1)
    artefact, _ = calibrate(model.float(), text, num_threads=os.cpu_count() or 1)
    artefact.save(artefact_path)


def tokens_of(count: int, seed: int) -> list[int]:
    import numpy as np

    return np.random.default_rng(seed).integers(3, VOCABULARY, count).tolist()


def held_by(_: object) -> tuple[list[list[str]], int]:
    """In a worker: of each layer and KV head, what its rows are coded with; steps with NaN."""
    import hashlib

    from oscar_kv.vllm.worker import current_worker

    ours, layers = current_worker(), []
    for index in sorted(ours.local_layers.values()):
        codec = ours.served.codec(index, ours.max_position)
        heads = [hashlib.sha256() for _ in range(ours.served.shape.num_kv_heads)]
        for side in (codec.key_side(), codec.value_side()):
            for array in (side.transform, side.attend_transform, side.mean, side.clip_ratio):
                if array is not None:
                    for digest, part in zip(heads, array, strict=True):
                        digest.update(part.tobytes())
        layers.append([digest.hexdigest() for digest in heads])
    ours.not_finite.check()
    return layers, ours.not_finite.num_steps


def run_engine(folder: pathlib.Path, kv: str, size: int, out: pathlib.Path) -> None:
    """kv: "" for BF16."""
    from vllm import LLM, SamplingParams

    began, arguments = time.time(), {}
    if kv:
        from oscar_kv.vllm.plugin import registered_name

        os.environ["OSCAR_KV"] = kv
        arguments = {"attention_backend": registered_name(), "block_size": 64}
    llm = LLM(
        model=str(folder),
        skip_tokenizer_init=True,
        dtype="bfloat16",
        tensor_parallel_size=size,
        distributed_executor_backend="mp" if size > 1 else "uni",
        disable_custom_all_reduce=True,
        compilation_config={"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY"},
        max_model_len=2048,
        max_num_seqs=4,
        max_num_batched_tokens=STEP,
        kv_cache_memory_bytes=1 << 28,
        gpu_memory_utilization=0.1,  # asked to be free; several engines share a GPU
        enable_prefix_caching=False,
        generation_config="vllm",
        **arguments,
    )
    parameters = SamplingParams(
        temperature=0.0, max_tokens=NEW, prompt_logprobs=0, logprobs=0, detokenize=False
    )
    prompt = {"prompt_token_ids": tokens_of(PROMPT, SEED + 2)}
    (output,) = llm.generate([prompt], parameters, use_tqdm=False)
    answer = output.outputs[0]
    tokens = list(answer.token_ids)
    ranks = llm.collective_rpc(held_by) if kv else []
    result = {
        "seconds": round(time.time() - began, 1),
        "graphs": str(llm.llm_engine.vllm_config.compilation_config.cudagraph_mode),
        # Each layer's KV heads, those of the first rank first.
        "heads": [
            [head for rank in layer for head in rank]
            for layer in zip(*(layers for layers, _ in ranks), strict=True)
        ],
        "steps_with_nan": sum(steps for _, steps in ranks),
        "kv_tokens": llm.llm_engine.vllm_config.cache_config.num_gpu_blocks * 64 if kv else None,
        "prompt": [
            next(iter(step.values())).logprob for step in output.prompt_logprobs if step is not None
        ],
        "tokens": tokens,
        "answer": [
            step[token].logprob for step, token in zip(answer.logprobs, tokens, strict=True)
        ],
    }
    out.write_text(json.dumps(result))


def difference(one: dict, other: dict) -> dict[str, object]:
    """Of the logarithms, in nats."""
    prompt = [abs(a - b) for a, b in zip(one["prompt"], other["prompt"], strict=True)]
    same = 0
    while same < NEW and one["tokens"][same] == other["tokens"][same]:
        same += 1
    answer = [abs(a - b) for a, b in zip(one["answer"][:same], other["answer"][:same], strict=True)]
    return {
        "prompt_mean": sum(prompt) / len(prompt),
        "prompt_most": max(prompt),
        "same_answer_tokens": same,
        "answer_mean": sum(answer) / len(answer) if answer else None,
        "same_heads": one["heads"] == other["heads"],
    }


def wrong(report: dict, results: dict, engines: list[str], first: int, others: list[int]) -> list:
    """What is not as it has to be."""
    found = []
    for name in engines:
        if results[name, first]["steps_with_nan"]:
            found.append(f"{name}: rows with NaN or Inf")
        heads = results[name, first]["heads"]
        different = len({head for layer in heads for head in layer})
        if name != "quarot" and different < len(heads) * KV_HEADS:  # quarot's are all the same
            found.append(f"{name}: KV heads are not told apart")
        codes = report[f"{name} against bf16, {first} GPU"]
        for size in others:
            ours = report[f"{name}, {size} GPUs against {first}"]
            if results[name, size]["steps_with_nan"]:
                found.append(f"{name}, {size} GPUs: rows with NaN or Inf")
            if not ours["same_heads"]:
                found.append(f"{name}, {size} GPUs: KV heads are coded with something else")
            if not ours["prompt_mean"] <= ALLOWED * codes["prompt_mean"]:
                found.append(f"{name}, {size} GPUs: differs as much as codes do")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--work", type=pathlib.Path, default=pathlib.Path("/tmp/oscar-two-gpus"))
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--seconds", type=float, default=200, help="for all engines")
    parser.add_argument("--only", nargs=3, help=argparse.SUPPRESS)  # kv, size, result
    options = parser.parse_args()
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    folder = options.work / "model"
    if options.only:
        kv, size, out = options.only
        run_engine(folder, kv, int(size), pathlib.Path(out))
        return
    artefact = options.work / "model.oscar.safetensors"
    if not artefact.is_file():
        make_model(folder, artefact, options.layers)
    engines = {
        "bf16": "",
        "oscar-plus": str(artefact),
        "quarot": "quarot",
    }
    running = {}
    for name, kv in engines.items():
        for size in options.sizes:
            out, log = (options.work / f"{name}-{size}.{kind}" for kind in ("json", "log"))
            command = [sys.executable, __file__, "--out", "-", "--work", str(options.work)]
            command += ["--only", kv, str(size), str(out)]
            with open(log, "w") as file:
                child = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT)
            running[name, size] = (child, out, log)
    results, failed, end = {}, False, time.time() + options.seconds
    for (name, size), (child, out, log) in running.items():
        try:
            status: int | str = child.wait(max(1, end - time.time()))
        except subprocess.TimeoutExpired:
            child.kill()
            status = "time is up"
        if status:
            failed = True
            print(f"{name}, tensor parallel {size}: {status}\n{log.read_text()[-3000:]}")
            continue
        results[name, size] = json.loads(out.read_text())
        print(f"{name}, tensor parallel {size}: {results[name, size]['seconds']} s", flush=True)
    import torch

    report: dict[str, object] = {
        "device": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
        "model": f"random, {options.layers} layers, {HEADS} query and {KV_HEADS} KV heads of 128",
        "prompt": f"{PROMPT} tokens in steps of {STEP}, {NEW} tokens answered, nats",
    }
    first, *others = options.sizes
    for name in engines:
        for size in others:
            if {(name, first), (name, size)} <= results.keys():
                report[f"{name}, {size} GPUs against {first}"] = difference(
                    results[name, first], results[name, size]
                )
    for name in list(engines)[1:]:
        if {("bf16", first), (name, first)} <= results.keys():
            report[f"{name} against bf16, {first} GPU"] = difference(
                results["bf16", first], results[name, first]
            )
    if not failed:
        report["wrong"] = wrong(report, results, list(engines)[1:], first, others)
        failed = bool(report["wrong"])
    options.out.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report, indent=1))
    sys.exit(int(failed))


if __name__ == "__main__":
    main()
