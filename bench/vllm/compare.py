"""KL divergence of one engine's logits from another's.

Usage: compare.py REFERENCE_NPY NPY...

Prints what `kl_statistics` gives for each file, as JSON. Files: [tokens, vocabulary], as quality.py
keeps them.
"""

import json
import pathlib
import sys

import numpy as np
import torch


def kl_of(p_logits: torch.Tensor, q_logits: torch.Tensor) -> torch.Tensor:
    """KL in nats of each row."""
    p, q = p_logits.float().log_softmax(-1), q_logits.float().log_softmax(-1)
    return (p.exp() * (p - q)).sum(-1).clamp(min=0).double()


def kl_statistics(reference: np.ndarray, logits: np.ndarray) -> dict[str, float]:
    """Of the second half: KL in nats a token, mean, 10 % trimmed mean, median; and how often the
    likeliest token is the same."""
    half, values, same = len(logits) // 2, [], 0
    for begin in range(half, len(logits), 64):
        p, q = (
            torch.from_numpy(x[begin : begin + 64].astype(np.float32)) for x in (reference, logits)
        )
        values.append(kl_of(p, q))
        same += int((p.argmax(-1) == q.argmax(-1)).sum())
    kl = torch.cat(values).sort().values
    cut = len(kl) // 10
    return {
        "mean": float(kl.mean()),
        "trimmed": float(kl[cut : len(kl) - cut].mean()),
        "median": float(kl.median()),
        "most": float(kl[-1]),
        "same_token": same / len(kl),
    }


def main() -> None:
    reference, *others = (np.load(path, mmap_mode="r") for path in sys.argv[1:])
    names = [pathlib.Path(path).stem for path in sys.argv[2:]]
    results = {n: kl_statistics(reference, x) for n, x in zip(names, others, strict=True)}
    print(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
