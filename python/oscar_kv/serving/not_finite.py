"""Rows with NaN or Inf are stored as zeros; this counts the steps in which a layer had any."""

import atexit
import logging
from collections.abc import Sequence

import numpy as np
import torch

logger = logging.getLogger("oscar_kv")


class NotFinite:
    """A flag for each layer, set by whatever encodes, and read here without waiting for it.

    layers: what the log calls them. On a GPU the flags are in pinned memory of the host, which
    kernels write to directly; so a flag is seen at the first `check` after its kernel has run. What
    is flagged twice between two checks counts once. Not thread-safe.
    """

    def __init__(self, layers: Sequence[int], device: torch.device | str = "cpu") -> None:
        self.layers = list(layers)
        on_gpu = torch.device(device).type == "cuda"
        self.flags = torch.zeros(len(self.layers), dtype=torch.int32, pin_memory=on_gpu)
        self._seen = self.flags.numpy()
        self.counts = np.zeros(len(self.layers), np.int64)
        self.num_steps = 0
        atexit.register(self.check)

    def check(self) -> None:
        """Takes note of flags, and logs the first, tenth, hundredth … step that set any."""
        found = np.flatnonzero(self._seen.copy())  # a device may write meanwhile
        if not len(found):
            return
        self._seen[found] = 0
        self.counts[found] += 1
        self.num_steps += 1
        if self.num_steps == 10 ** (len(str(self.num_steps)) - 1):
            names = ", ".join(str(self.layers[i]) for i in found)
            logger.warning(
                "oscar-kv: layers %s were given rows with NaN or Inf, which are stored as zeros; "
                "steps with such rows so far: %d",
                names,
                self.num_steps,
            )
