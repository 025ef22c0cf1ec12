"""A paged engine as its cache sees it: prefix pages shared, requests preempted, drafts taken back.

It runs no model. A token is known by the hash of all tokens up to it, which stands for its key and
value; so whether a copy is the right one can be seen.
"""

import dataclasses
import random

import numpy as np
from oscar_kv.codec import PAGE_TOKENS


@dataclasses.dataclass
class Request:
    tokens: list[int]
    prompt: int
    target: int
    computed: int = 0
    pages: list[int] = dataclasses.field(default_factory=list)
    row: int = -1
    hashes: list[int] = dataclasses.field(default_factory=list)

    def identity(self, token: int) -> int:
        while len(self.hashes) <= token:
            before = self.hashes[-1] if self.hashes else 0
            self.hashes.append(hash((before, self.tokens[len(self.hashes)])))
        return self.hashes[token]

    def cut(self, count: int) -> None:
        del self.tokens[count:], self.hashes[count:]


@dataclasses.dataclass
class Step:
    requests: list[Request]
    starts: np.ndarray
    lengths: np.ndarray
    table: np.ndarray
    slots: np.ndarray
    rows: np.ndarray


class PagedEngine:
    """Random requests over a few shared prompts; drafts: tokens that may be taken back."""

    def __init__(self, seed: int, num_pages: int, num_rows: int, drafts: int = 0) -> None:
        self.random = random.Random(seed)
        self.num_pages, self.num_rows, self.drafts = num_pages, num_rows, drafts
        self.free = list(range(num_pages))  # the oldest first; a freed page keeps its content
        self.users = [0] * num_pages
        self.cached: dict[int, int] = {}  # identity of a full page's last token → page
        self.content = [0] * (num_pages * PAGE_TOKENS)
        self.running: list[Request] = []
        self.waiting: list[Request] = []
        self.prompts = [
            [self.random.randrange(50) for _ in range(self.random.randrange(60, 400))]
            for _ in range(3)
        ]
        self.num_hits = self.num_preempted = self.num_taken_back = 0

    def _new_request(self) -> Request:
        shared = self.random.choice(self.prompts)
        cut = self.random.randrange(1, len(shared) + 1)
        tokens = shared[:cut] + [self.random.randrange(50) for _ in range(self.random.randrange(9))]
        return Request(tokens, len(tokens), len(tokens) + self.random.randrange(1, 60))

    def _take_page(self) -> int | None:
        if not self.free:
            return None
        page = self.free.pop(0)
        self.cached = {key: value for key, value in self.cached.items() if value != page}
        self.users[page] = 1
        return page

    def _release(self, request: Request) -> None:
        for page in request.pages:
            self.users[page] -= 1
            if self.users[page] == 0:
                self.free.append(page)
        request.pages, request.computed, request.row = [], 0, -1
        self.running.remove(request)

    def _start(self) -> None:
        rows = sorted(set(range(self.num_rows)) - {r.row for r in self.running})
        if not rows or self.random.random() < 0.5:
            return
        request = self.waiting.pop(0) if self.waiting else self._new_request()
        request.row = self.random.choice(rows)
        while (end := request.computed + PAGE_TOKENS) < len(request.tokens):
            page = self.cached.get(request.identity(end - 1))
            if page is None:
                break
            if self.users[page] == 0:
                self.free.remove(page)
            self.users[page] += 1
            request.pages.append(page)
            request.computed = end
        self.num_hits += request.computed > 0
        self.running.append(request)

    def _grow(self, request: Request, end: int) -> bool:
        while len(request.pages) * PAGE_TOKENS < end:
            page = self._take_page()
            if page is None:
                return False
            request.pages.append(page)
        return True

    def _schedule(self, request: Request, busy: list[Request]) -> int:
        """Number of new tokens; 0: not this time."""
        if self.random.random() < 0.2:
            return 0
        known = len(request.tokens) - request.computed
        count = min(known, self.random.choice([1, 7, 64, 100, 300]))
        if known == 1 and self.drafts:
            guesses = [
                self.random.randrange(50) for _ in range(self.random.randint(0, self.drafts))
            ]
            request.tokens += guesses
            count += len(guesses)
        while not self._grow(request, request.computed + count):
            others = [r for r in self.running if r is not request and r not in busy]
            if not others:
                self.waiting.append(request)
                self._release(request)
                request.cut(request.prompt)
                self.num_preempted += 1
                return 0
            victim = self.random.choice(others)
            self._release(victim)
            self.waiting.append(victim)
            self.num_preempted += 1
        return count

    def step(self) -> Step:
        for _ in range(3):
            self._start()
        busy: list[Request] = []
        counts = []
        order = list(self.running)
        self.random.shuffle(order)  # an engine's rows in a batch move about
        for request in order:
            if request in self.running:
                count = self._schedule(request, busy)
                if count:
                    busy.append(request)
                    counts.append(count)
        starts = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)]).astype(np.int64)
        lengths = np.array([r.computed + c for r, c in zip(busy, counts, strict=True)], np.int64)
        table = np.zeros((len(busy), 16), np.int64)
        slots = []
        for i, request in enumerate(busy):
            table[i, : len(request.pages)] = request.pages
            for token in range(request.computed, lengths[i]):
                slot = request.pages[token // PAGE_TOKENS] * PAGE_TOKENS + token % PAGE_TOKENS
                slots.append(slot)
                self.content[slot] = request.identity(token)
        rows = np.array([r.row for r in busy], np.int64)
        return Step(busy, starts, lengths, table, np.array(slots, np.int64), rows)

    def finish(self, step: Step) -> None:
        """Accepts what was computed, as far as the drafts were right, and goes on."""
        for i, request in enumerate(step.requests):
            end = int(step.lengths[i])
            guessed = end - request.computed - 1
            drafted = self.drafts and end == len(request.tokens) and end > request.prompt
            if drafted and 0 < guessed <= self.drafts:
                wrong = self.random.randint(0, guessed)
                self.num_taken_back += wrong > 0
                end -= wrong
                request.cut(end)
            request.computed = end
            for page in range(end // PAGE_TOKENS):
                key = request.identity((page + 1) * PAGE_TOKENS - 1)
                self.cached.setdefault(key, request.pages[page])
            if end == len(request.tokens):
                request.tokens.append(self.random.randrange(50))
            if len(request.tokens) >= request.target:
                self._release(request)
