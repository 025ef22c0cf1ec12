"""A transformers cache over the library's pages: codes, and exact first and last tokens.

    cache = OscarCache(model, "model.oscar.safetensors", max_tokens=4096)
    model.generate(**inputs, past_key_values=cache)

The model attends through the library: transformers' own attention would need the keys in full. So
making a cache sets the model's attention implementation to "oscar";
`model.set_attn_implementation("sdpa")` puts it back. For research on CPUs; float32 inside.
"""

import os
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor

from oscar_kv.artefact import Artefact, ModelShape
from oscar_kv.cache import Cache
from oscar_kv.codec import PAGE_TOKENS, Method
from oscar_kv.errors import InvalidArgumentError, MismatchError, OscarError, UnsupportedError
from oscar_kv.transformers.attention import IMPLEMENTATION, TAG, use_our_attention
from oscar_kv.transformers.model import describe


class OscarCache(transformers.Cache):
    """Keys and values of one generation, for a batch of sequences padded on the left.

    kv: as --kv takes it: "quarot:k3v2", or an artefact's path with options; it must be made for
    this model. max_tokens: of one sequence, prompt included; memory for it is reserved at the first
    forward pass. max_step_tokens: of one forward pass (default: the first one's, at least 512);
    longer prompts need generate's prefill_chunk_size. sink_tokens, recent_tokens: exact tokens at
    the start and at the end; default: what kv says.
    """

    def __init__(
        self,
        model: Any,
        kv: str | os.PathLike[str] | None = None,
        *,
        max_tokens: int = 4096,
        max_step_tokens: int | None = None,
        sink_tokens: int | None = None,
        recent_tokens: int | None = None,
        num_threads: int = 1,
    ) -> None:
        super().__init__(layers=[])
        if max_tokens < 1:
            raise InvalidArgumentError(f"max_tokens is {max_tokens}; right: at least 1")
        if kv is None:
            kv = "quarot"
        described = describe(model)
        self._shape: ModelShape = described.shape
        self._check_artefact(model, os.fspath(kv), described)
        self._method = Method(kv, self._shape)
        self._max_tokens, self._max_step_tokens = max_tokens, max_step_tokens
        self._windows = {"sink_tokens": sink_tokens, "recent_tokens": recent_tokens}
        self._num_threads = num_threads
        self._model = weakref.ref(model)
        self._cache: Cache | None = None
        self._sequences: list[int] = []
        self._counts = [0] * self._shape.num_layers  # tokens seen by each layer, padding included
        self._step_counts: list[int] = []  # real tokens of each sequence in this forward pass
        self._unattended: int | None = None  # layer whose keys nobody has attended with yet
        use_our_attention(model)

    @staticmethod
    def _check_artefact(model: Any, kv: str, described: Any) -> None:
        path = kv if os.path.isfile(kv) else kv.rpartition(":")[0]
        if not os.path.isfile(path):
            return
        artefact = Artefact.load(path)
        artefact.check_model(described.architecture, described.shape, described.weights_hash)
        if artefact.weights_hash and described.weights_hash:
            return
        # Nothing says that the channels are in this model's order, so look.
        from oscar_kv.transformers.rope import layer_ropes

        found = layer_ropes(model)
        ropes = artefact.ropes
        for layer, index in zip(artefact.layers, artefact.layer_ropes, strict=True):
            rope = found.get(layer)
            if index < 0 or rope is None:
                continue
            if rope.pairing != ropes[index].pairing:
                raise MismatchError(
                    f"{path}: layer {layer} pairs RoPE channels {ropes[index].pairing}, this model "
                    f"{rope.pairing}; use oscar-kv convert --pairing {rope.pairing}"
                )

    # ---- what transformers calls ----

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """Hands the new keys and values on to our attention, which stores them."""
        self._require_attended()
        model = self._model()
        if model is not None and model.config._attn_implementation != IMPLEMENTATION:
            raise UnsupportedError(
                f"the model attends with '{model.config._attn_implementation}'; an OscarCache "
                f"needs model.set_attn_implementation('{IMPLEMENTATION}')"
            )
        if not 0 <= layer_idx < self._shape.num_layers:
            raise InvalidArgumentError(
                f"layer {layer_idx} asks for the cache; this model has {self._shape.num_layers}"
            )
        self._counts[layer_idx] += key_states.shape[2]
        self._unattended = layer_idx
        key_states = key_states.view_as(key_states)
        setattr(key_states, TAG, (self, layer_idx))
        return key_states, value_states

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self._counts[layer_idx]

    def get_max_length(self, layer_idx: int | None = None) -> int:
        return self._max_tokens

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        return self._counts[layer_idx] + query_length, 0

    @property
    def batch_size(self) -> int:
        return len(self._sequences) or -1

    @property
    def is_initialized(self) -> bool:
        return self._cache is not None

    @property
    def is_compileable(self) -> bool:
        return False

    @property
    def is_croppable(self) -> bool:
        return True

    @property
    def is_sliding(self) -> list[bool]:
        return [False] * self._shape.num_layers

    @property
    def is_linear(self) -> list[bool]:
        return [False] * self._shape.num_layers

    def __len__(self) -> int:
        return self._shape.num_layers

    def __repr__(self) -> str:
        return f"OscarCache({self._method.name}, {self.batch_size} x {self._counts[0]} tokens)"

    def reset(self) -> None:
        """Forgets every token; the memory stays."""
        self._unattended = None
        for sequence in self._sequences:
            self._pages().free_sequence(sequence)
        self._sequences = [self._pages().create_sequence() for _ in self._sequences]
        self._counts = [0] * self._shape.num_layers

    def crop(self, tokens_to_remove: int) -> None:
        """Removes −tokens_to_remove tokens at the end; a positive number is the length to keep.

        What was cropped and comes again gets the same codes. Copies of tokens that had left the
        exact window stay dropped.
        """
        self._require_settled()
        length = self._counts[0]
        if tokens_to_remove > 0:
            tokens_to_remove = min(0, tokens_to_remove - length)
        removed = min(length, -tokens_to_remove)
        if removed == 0:
            return
        for sequence in self._sequences:
            kept = max(0, self._pages().num_tokens(sequence) - removed)
            self._pages().truncate(sequence, kept)
        self._counts = [length - removed] * self._shape.num_layers

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Sequence i becomes a fork of sequence beam_idx[i]; pages are shared until written."""
        self._select([int(index) for index in beam_idx])

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keeps these sequences of the batch, in this order."""
        if indices.dtype == torch.bool:
            indices = indices.nonzero()[:, 0]
        self._select([int(index) for index in indices])

    def batch_repeat_interleave(self, repeats: int) -> None:
        if self._sequences and repeats != 1:
            raise UnsupportedError(
                f"an OscarCache of {len(self._sequences)} sequences cannot become one of "
                f"{repeats * len(self._sequences)}; repeat the inputs before the first forward pass"
            )

    # ---- the pages ----

    @property
    def num_bytes(self) -> int:
        """Bytes reserved: pages, exact copies, tables; 0 before the first forward pass."""
        return 0 if self._cache is None else self._cache.num_bytes

    def _pages(self) -> Cache:
        assert self._cache is not None
        return self._cache

    def _select(self, sources: Sequence[int]) -> None:
        self._require_settled()
        if not self._sequences:
            return
        batch = len(self._sequences)
        if len(sources) > batch or any(not 0 <= source < batch for source in sources):
            raise InvalidArgumentError(
                f"sequences {list(sources)} are asked for; the cache has {batch}, and no "
                "room for more"
            )
        pages = self._pages()
        for index in set(range(batch)) - set(sources):
            pages.free_sequence(self._sequences[index])
        taken: set[int] = set()
        chosen = []
        for source in sources:  # the first to ask for a sequence keeps it, the others fork it
            sequence = self._sequences[source]
            chosen.append(pages.fork(sequence) if source in taken else sequence)
            taken.add(source)
        self._sequences = chosen

    def _require_attended(self) -> None:
        if self._unattended is not None:
            raise UnsupportedError(
                f"layer {self._unattended} stored keys but did not attend through the cache: its "
                "attention does not go through transformers' attention interface"
            )

    def _require_settled(self) -> None:
        self._require_attended()
        if len(set(self._counts)) > 1:
            raise UnsupportedError("the last forward pass ended early; call reset() first")

    def _begin_step(self, batch: int, num_tokens: int, mask: Tensor | None, positions: Any) -> None:
        """Reserves this pass's tokens; refuses what the pages cannot hold, changing nothing."""
        if mask is not None and mask.dim() != 2:
            raise UnsupportedError(
                f"attention_mask has {mask.dim()} axes; an OscarCache takes [batch, tokens] only"
            )
        if self._sequences and batch != len(self._sequences):
            raise InvalidArgumentError(
                f"the batch has {batch} sequences, the cache {len(self._sequences)}; make a "
                "new cache"
            )
        counts = []
        for row in range(batch):
            cached = self._pages().num_tokens(self._sequences[row]) if self._sequences else 0
            real = num_tokens
            if mask is not None:
                seen = mask[row, -num_tokens:].bool()
                real = int(seen.sum())
                if not bool(seen[num_tokens - real :].all()) or (cached and real != num_tokens):
                    raise UnsupportedError(
                        f"sequence {row} has padding after its first token; pad on the left"
                    )
            self._check_positions(row, cached, real, positions)
            if cached + real > self._max_tokens:
                raise UnsupportedError(
                    f"sequence {row} would have {cached + real} tokens; max_tokens is "
                    f"{self._max_tokens}"
                )
            counts.append(real)
        if self._cache is None:
            self._reserve(batch, num_tokens)
        pages = self._pages()
        if num_tokens > pages.max_append_tokens:
            raise UnsupportedError(
                f"a forward pass of {num_tokens} tokens; max_step_tokens is "
                f"{pages.max_append_tokens}: raise it, or generate with prefill_chunk_size"
            )
        if not self._sequences:
            self._sequences = [pages.create_sequence() for _ in range(batch)]
        for sequence, count in zip(self._sequences, counts, strict=True):
            pages.begin_append(sequence, count)
        self._step_counts = counts

    @staticmethod
    def _check_positions(row: int, cached: int, real: int, positions: Any) -> None:
        if positions is None or real == 0:
            return
        given = positions[row if positions.shape[0] > 1 else 0, -real:].tolist()
        if given != list(range(cached, cached + real)):
            raise UnsupportedError(
                f"sequence {row}: its next tokens have positions {given[0]} to {given[-1]}, the "
                f"cache has {cached} tokens; positions must count the tokens from 0"
            )

    def _reserve(self, batch: int, num_tokens: int) -> None:
        step = max(512, num_tokens) if self._max_step_tokens is None else self._max_step_tokens
        # A page more a sequence: two beams that share their last page each need their own.
        num_pages = batch * (-(-self._max_tokens // PAGE_TOKENS) + 1)
        self._cache = Cache(
            self._method,
            num_pages=num_pages,
            max_sequences=batch,
            max_append_tokens=step,
            max_position=self._max_tokens,
            num_threads=self._num_threads,
            **self._windows,
        )

    def attend(
        self,
        layer: int,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        positions: Tensor | None,
        **options: Any,
    ) -> Tensor:
        """Stores the layer's new tokens and attends over all of them.

        query: [B, num_q_heads, T, d], key, value: [B, num_kv_heads, T, d]; returns [B, T,
        num_q_heads, d_v], zeros where there is padding.
        """
        batch, num_tokens = query.shape[0], query.shape[2]
        self._unattended = None
        if layer == 0:
            try:
                self._begin_step(batch, num_tokens, mask, positions)
            except OscarError:
                self._counts[layer] -= num_tokens  # refused: the cache is as it was
                raise
        out = np.zeros(
            (batch, num_tokens, self._shape.num_q_heads, self._shape.head_dim_v), np.float32
        )
        rows = [x.detach().transpose(1, 2).float().numpy() for x in (query, key, value)]
        pages = self._pages()
        for row, (sequence, count) in enumerate(
            zip(self._sequences, self._step_counts, strict=True)
        ):
            first = num_tokens - count
            q, k, v = (x[row, first:] for x in rows)
            pages.append_layer(sequence, layer, k, v, count)
            if count:
                out[row, first:] = pages.attend(sequence, layer, q, **options)[0]
        return torch.from_numpy(out).to(query.dtype)
