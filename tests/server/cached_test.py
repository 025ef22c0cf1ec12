"""A request whose beginning is cached answers as the same one alone, whatever shares its batch."""

import concurrent.futures
import pathlib

from server_case import FULL, Server, ServerTest, main

TEXT = pathlib.Path(__file__).resolve().parents[2] / "data" / "heldout.txt"
PAGE, SINKS, RECENT = 64, 64, 256  # tokens of a page, and those that are also kept exactly
CACHED, NEW = 400, 100
OTHERS = (1000, 300, 300)  # tokens of the prompt beside it, one a round
SHARED = (PAGE - 1, PAGE, PAGE + 1, SINKS + RECENT, SINKS + RECENT + 1)
BUSY, FIRST, SECOND = 2, 0, 1  # slots
# Sums in another order, for a batch of another shape. What f16 shows here is measured.
SMALLEST = 0.01
OPTIONS = [[], *([["-b", 96, "-ub", 96]] if FULL else [])]  # prompts in one piece, and in several


class Cached(ServerTest):
    def tokens(self, server):
        text = TEXT.read_text(encoding="utf-8")[:12000]
        tokens = server.request("POST", "/tokenize", {"content": text})[1]["tokens"]
        self.assertGreater(len(tokens), CACHED + NEW + max(OTHERS))
        return tokens

    def ask(self, server, prompt, slot, cached):
        """Log probabilities of the likeliest next tokens; and how many tokens were cached."""
        answer = server.complete(prompt, n_predict=1, id_slot=slot, cache_prompt=cached, n_probs=10)
        top = answer["completion_probabilities"][0]["top_logprobs"]
        return {entry["id"]: entry["logprob"] for entry in top}, answer["timings"]["cache_n"]

    def change(self, alone, other):
        common = alone.keys() & other.keys()
        self.assertGreater(len(common), 4)
        return round(max(abs(alone[token] - other[token]) for token in common), 5)

    def change_in_a_batch(self, server, tokens):
        """B, cached in part, next to A, which is new, while a third slot writes: three times."""
        b, rest = tokens[: CACHED + NEW], tokens[CACHED + NEW :]
        alone, cached = self.ask(server, b, FIRST, cached=False)
        self.assertEqual(cached, 0)
        changes = []
        with concurrent.futures.ThreadPoolExecutor(3) as pool:
            for other in OTHERS:
                # Anew: a slot that is only cut back has lost exact copies of what it cuts back to.
                server.complete(b[:CACHED], n_predict=0, id_slot=FIRST, cache_prompt=False)
                # Requests that arrive during a step of this one begin in the same batch.
                busy = pool.submit(
                    server.complete, tokens[:8], n_predict=32, id_slot=BUSY, ignore_eos=True
                )
                new = pool.submit(self.ask, server, rest[:other], SECOND, cached=False)
                answer, cached = self.ask(server, b, FIRST, cached=True)
                self.assertGreaterEqual(cached, CACHED - 1)
                self.assertLess(cached, len(b))
                self.assertEqual(new.result()[1], 0)
                busy.result()
                changes.append(self.change(alone, answer))
        return changes

    def change_of_prefixes(self, server, tokens):
        """Prefixes that end around a page's, the sinks' and the window's end."""
        changes = []
        for length in SHARED:
            prompt = tokens[: length + 20]
            alone, _ = self.ask(server, prompt, FIRST, cached=False)
            server.complete(tokens[:length], n_predict=0, id_slot=FIRST, cache_prompt=False)
            answer, cached = self.ask(server, prompt, FIRST, cached=True)
            self.assertGreaterEqual(cached, length - 1)
            changes.append(self.change(alone, answer))
        return changes

    def changes(self, kv, options):
        with Server(self.folder, "-c", 3 * 2048, "-np", 3, "-t", 2, *options, kv=kv) as server:
            tokens = self.tokens(server)
            return [
                *self.change_in_a_batch(server, tokens),
                *self.change_of_prefixes(server, tokens),
            ]

    def test_a_cached_request_answers_as_alone(self):
        """B31: B equals B alone; each of three replies is 200."""
        for options in OPTIONS:
            f16, ours = self.changes("f16", options), self.changes("quarot", options)
            print(f"changes of log probabilities: f16 {f16}, quarot {ours}")
            # A sum in another order moves a log probability of this model by tenths, or by nothing
            # where a batch has the same shape to the kernels: the largest says how much it can be.
            self.assertLessEqual(max(ours), max(2 * max(f16), SMALLEST))


if __name__ == "__main__":
    main()
