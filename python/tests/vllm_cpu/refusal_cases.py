"""Tries engines that must not start, and prints the reason of each: NAME TAB REASON.

Usage: refusal_cases.py MODEL_DIR WRONG_ARTEFACT
"""

import os
import sys

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

from vllm import LLM

PLAIN = {
    "dtype": "float32",
    "max_model_len": 512,
    "max_num_seqs": 2,
    "enforce_eager": True,
    "kv_cache_memory_bytes": 1 << 26,
    "distributed_executor_backend": "uni",
    "attention_backend": "OSCAR",
}


def first_reason(error: BaseException) -> str:
    """The innermost message: engines wrap what their workers say."""
    while (inner := error.__cause__ or error.__context__) is not None:
        error = inner
    return " ".join(str(error).split())


def main() -> None:
    model, wrong = sys.argv[1:]
    cases = {
        "strict": {"additional_config": {"oscar": {"strict": True}}},
        "other model": {"additional_config": {"oscar": {"kv": wrong}}},
        "missing file": {"additional_config": {"oscar": {"kv": "/nowhere/a.safetensors"}}},
        "unknown setting": {"additional_config": {"oscar": {"bits": 2}}},
        "dtype": {"kv_cache_dtype": "fp8"},
    }
    for name, changes in cases.items():
        try:
            LLM(model=model, **(PLAIN | changes))
        except Exception as error:
            print(f"REFUSED\t{name}\t{first_reason(error)}", flush=True)
        else:
            print(f"STARTED\t{name}\t", flush=True)


if __name__ == "__main__":
    main()
