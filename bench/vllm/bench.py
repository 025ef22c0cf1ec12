"""Decoding and prefill of vLLM with dummy weights, on a GPU: one cache at a time.

Usage: bench.py --out FOLDER --job MODEL:CACHE:POINT,POINT,... [--job ...]

MODEL: qwen3-8b or qwen3-4b, shapes only. CACHE: bf16, fp8, oscar[=METHOD] without an artefact, or
oscar-plus[=OPTIONS] with one that is fitted to random rows first. POINT, with BATCH a number or
`max`:
  CONTEXTxBATCH            decoding; the context is pretended to be cached (pretend.py), and every
                           request has pages of its own
  prefill:TOKENSxBATCH     prompts are computed: the time to the first token
  serve:INPUT+OUTPUTxBATCH prompts are computed and answered, all at once
  profile:CONTEXTxBATCH    kernel times of eight steps

A job is a process forked from one import of vLLM. FOLDER gets results.jsonl and a log for each job.
`ms` is the median time between steps with every request decoding; `live` the fewest requests that
ran meanwhile and must equal `batch`.
"""

import argparse
import json
import os
import pathlib
import random
import re
import signal
import statistics
import sys
import time
import traceback

SETTINGS = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
    "VLLM_HOST_IP": "127.0.0.1",
    "GLOO_SOCKET_IFNAME": "lo",
    "PYTHONUNBUFFERED": "1",
}
WIDTHS = {
    "qwen3-8b": {"hidden_size": 4096, "intermediate_size": 12288, "tie_word_embeddings": False},
    "qwen3-4b": {"hidden_size": 2560, "intermediate_size": 9728, "tie_word_embeddings": True},
}
GRAPHS = [1, 2, 4, 8, 16, 24, 32, 48, 56, 64]
MAX_LENGTH = 101376
NEW_TOKENS = 72
POINT = re.compile(r"(?:(prefill|serve|profile):)?(\d+)(?:\+(\d+))?x(\d+|max)")


def model_folder(name: str, root: pathlib.Path) -> str:
    folder = root / name
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 151936,
        "max_position_embeddings": 131072,
        "rope_theta": 1000000.0,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "attention_bias": False,
        "use_sliding_window": False,
        "torch_dtype": "bfloat16",
        "bos_token_id": 151643,
        "eos_token_id": 151645,
        **WIDTHS[name],
    }
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


def pretend_copies() -> None:
    """Decoding reads exact copies as it does after a prompt that was computed."""
    import pretend
    from oscar_kv.serving.copy_notes import CopyNotes

    original = CopyNotes.note

    def note(self, book, blocks, *arguments, **keywords):
        copies = original(self, book, blocks, *arguments, **keywords)
        if pretend.pretending:
            copies.blocks.copy_(blocks)
        return copies

    CopyNotes.note = note


class Bench:
    """An engine with one cache, and the points that are asked of it."""

    def __init__(self, model: str, cache: str, options: argparse.Namespace) -> None:
        import torch
        from vllm import LLM
        from vllm.config import KVTransferConfig

        self.out, self.tag = options.out, {"model": model, "cache": cache}
        folder = model_folder(model, options.work)
        began = time.time()
        arguments: dict[str, object] = {}
        kind, _, kv = cache.partition("=")
        if kind in ("oscar", "oscar-plus"):
            import oscar_kv.vllm.refusals as refusals
            from oscar_kv.vllm.plugin import registered_name

            refusals.HARMLESS_CONNECTORS.add("PretendedPrompts")
            pretend_copies()
            os.environ["OSCAR_KV"] = self._kv(kind, kv, options.work)
            arguments = {"attention_backend": registered_name(), "block_size": 64}
        elif kind == "fp8":
            arguments = {"kv_cache_dtype": "fp8"}
        elif kind != "bf16":
            raise SystemExit(f"cache {cache} is unknown; known: bf16, fp8, oscar, oscar-plus")
        self.llm = LLM(
            model=folder,
            skip_tokenizer_init=True,
            load_format="dummy",
            dtype="bfloat16",
            max_model_len=MAX_LENGTH,
            max_num_seqs=GRAPHS[-1],
            max_num_batched_tokens=8192,
            gpu_memory_utilization=0.92,
            generation_config="vllm",
            enable_prefix_caching=True,
            compilation_config={"cudagraph_capture_sizes": GRAPHS},
            kv_transfer_config=KVTransferConfig(
                kv_connector="PretendedPrompts",
                kv_connector_module_path="pretend",
                kv_role="kv_both",
            ),
            **arguments,
        )
        self.engine = self.llm.llm_engine
        core = self.engine.engine_core.engine_core
        self.scheduler = core.scheduler
        config = self.engine.vllm_config
        pages = self.scheduler.kv_cache_config
        self.kv_tokens = pages.num_blocks * config.cache_config.block_size
        free, total = torch.cuda.mem_get_info()
        self.emit(
            start_s=round(time.time() - began, 1),
            kv_tokens=self.kv_tokens,
            kv_gib=round(sum(x.size for x in pages.kv_cache_tensors) / 2**30, 2),
            gpu_used_gib=round((total - free) / 2**30, 1),
            block_size=config.cache_config.block_size,
            graphs=str(config.compilation_config.cudagraph_mode),
            runner_v2=bool(config.use_v2_model_runner),
            **self._about_oscar(),
        )
        self.random = random.Random(0)
        self.base = self.ids(MAX_LENGTH)

    def _kv(self, kind: str, options: str, work: pathlib.Path) -> str:
        if kind == "oscar":
            return options or "quarot"
        from random_artefact import save_random_artefact

        path = work / f"{self.tag['model']}.oscar.safetensors"
        if not path.exists():
            config = json.loads((work / self.tag["model"] / "config.json").read_text())
            save_random_artefact(config, path)
        return f"{path}:{options}" if options else str(path)

    @staticmethod
    def _about_oscar() -> dict[str, object]:
        import oscar_kv.vllm.worker as worker

        ours = worker._worker
        if ours is None:
            return {}
        return {
            "method": str(ours.served),
            "copies": ours.describe_copies(),
            "kernel": ours.cuda_layers.plans.kernel,
            "steps_with_nan": ours.not_finite.num_steps,
        }

    def emit(self, **values: object) -> None:
        record = {**self.tag, **values}
        print("RESULT", record, flush=True)
        with open(self.out / "results.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")

    def ids(self, count: int) -> list[int]:
        return [self.random.randrange(1000, 150000) for _ in range(count)]

    def prompts(self, length: int, batch: int) -> list[dict[str, list[int]]]:
        """The first pages differ, so that nothing is shared."""
        return [{"prompt_token_ids": self.ids(64) + self.base[64:length]} for _ in range(batch)]

    def run(self, prompts: list, new_tokens: int, profile: bool = False) -> dict[str, object]:
        import torch
        from vllm import SamplingParams

        parameters = SamplingParams(
            temperature=0.0, max_tokens=new_tokens, ignore_eos=True, detokenize=False
        )
        self.llm.enqueue(prompts, parameters, use_tqdm=False)
        began, stamps, live, first, profiler = time.perf_counter(), [], [], None, None
        kernels: list[tuple[str, int, float]] = []
        while self.engine.has_unfinished_requests():
            if profile and len(stamps) == new_tokens // 2:
                activities = [torch.profiler.ProfilerActivity.CUDA]
                profiler = torch.profiler.profile(activities=activities)
                profiler.__enter__()
            self.engine.step()
            stamps.append(time.perf_counter())
            running = self.scheduler.running
            live.append(len(running))
            answering = sum(request.num_output_tokens > 0 for request in running)
            if first is None and answering == len(prompts):
                first = stamps[-1]
            if profiler is not None and len(stamps) == new_tokens // 2 + 8:
                torch.cuda.synchronize()
                profiler.__exit__(None, None, None)
                rows = sorted(profiler.key_averages(), key=lambda e: -e.self_device_time_total)
                kernels = [
                    (e.key[:80], e.count, round(e.self_device_time_total / 1e3, 3))
                    for e in rows[:14]
                ]
                profiler = None
        low, high = max(0, len(stamps) - new_tokens + 12), len(stamps) - 4
        gaps = [b - a for a, b in zip(stamps[low : high - 1], stamps[low + 1 : high], strict=True)]
        result: dict[str, object] = {"all_s": round(stamps[-1] - began, 3)}
        if first is not None:
            result["first_s"] = round(first - began, 3)
        if len(gaps) > 8:
            result |= {
                "ms": round(1e3 * statistics.median(gaps), 3),
                "ms_mean": round(1e3 * statistics.mean(gaps), 3),
                "live": min(live[low:high]),
            }
        if kernels:
            result["kernels"] = kernels
        return result

    def point(self, text: str) -> None:
        import pretend

        found = POINT.fullmatch(text)
        if found is None:
            raise SystemExit(f"point {text} is no [prefill:|serve:|profile:]TOKENS[+NEW]xBATCH")
        kind, length = found[1], int(found[2])
        new_tokens = int(found[3] or NEW_TOKENS) if kind != "prefill" else 8
        room = min(GRAPHS[-1], int(self.kv_tokens * 0.985) // (length + new_tokens + 64))
        batch = room if found[4] == "max" else int(found[4])
        if batch > room:
            self.emit(point=text, batch=batch, skipped=f"{room} fit")
            return
        pretend.pretending = kind in (None, "profile")
        if not pretend.pretending:
            self.run(self.prompts(min(length, 4096), 1), 2)  # warm
        result = self.run(self.prompts(length, batch), new_tokens, profile=kind == "profile")
        if "ms" in result:
            result["tokens_per_s"] = round(batch / result["ms"] * 1e3, 1)
        if self.tag["cache"].startswith("oscar"):
            result["steps_with_nan"] = self._about_oscar()["steps_with_nan"]
        if kind == "serve":
            result["served_tokens_per_s"] = round(batch * new_tokens / result["all_s"], 1)
        self.emit(point=text, batch=batch, **result)


def run_job(job: str, options: argparse.Namespace) -> None:
    model, cache, points = job.split(":", 2)
    bench = Bench(model, cache, options)
    for point in points.split(","):
        bench.point(point)


def supervise(job: str, options: argparse.Namespace, log: pathlib.Path, seconds: float) -> int:
    """Runs a job in a child; its exit status, or −1 when its time was up."""
    sys.stdout.flush()
    end, child = time.time() + seconds, os.fork()
    if child == 0:
        os.setsid()
        file = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
        os.dup2(file, 1)
        os.dup2(file, 2)
        status = 1
        try:
            run_job(job, options)
            status = 0
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush()
        os._exit(status)
    while time.time() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.2)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return -1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--work", type=pathlib.Path, default=pathlib.Path("/tmp/oscar-vllm-bench"))
    parser.add_argument("--job", action="append", required=True)
    parser.add_argument("--job-seconds", type=float, default=240)
    parser.add_argument("--all-seconds", type=float, default=3600)
    options = parser.parse_args()
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    options.out.mkdir(parents=True, exist_ok=True)
    sys.path.insert(0, str(pathlib.Path(__file__).parent))
    began = time.time()
    import torch
    import vllm.entrypoints.llm
    import vllm.model_executor.models.qwen3
    import vllm.v1.worker.gpu_worker  # noqa: F401

    if torch.cuda.is_initialized():
        raise SystemExit("importing vLLM has initialised CUDA, so jobs cannot be forked")
    print(f"imported in {time.time() - began:.1f} s", flush=True)
    failed = 0
    for number, job in enumerate(options.job):
        left = options.all_seconds - (time.time() - began)
        if left < 30:
            print(f"no time left for {job}")
            failed += 1
            continue
        name = re.sub(r"[^a-z0-9]+", "-", ":".join(job.split(":")[:2]))
        log, started = options.out / f"{number}-{name}.log", time.time()
        status = supervise(job, options, log, min(options.job_seconds, left))
        print(f"{job}: status {status}, {time.time() - started:.1f} s", flush=True)
        if status:
            failed += 1
            print(log.read_text(errors="replace")[-3500:], flush=True)
    sys.exit(min(failed, 1))


if __name__ == "__main__":
    main()
