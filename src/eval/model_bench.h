// Tokens a second of one model under several KV caches, in one run: the caches take turns, so that
// what else the machine does strikes all of them alike.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "eval/instruction_counter.h"
#include "eval/timing.h"
#include "eval/workbench.h"

namespace oscar::eval {

struct ModelBenchOptions {
  std::vector<std::int64_t> depths;  // decode: tokens in the cache; prefill: tokens of the prompt
  int rounds = 5;                    // turns of each cache at each depth
  int steps = 8;                     // tokens decoded in a turn
  const InstructionCounter* instructions = nullptr;  // made before any thread was started, or null
  // Turns done, and of how many. May be null.
  std::function<void(std::int64_t done, std::int64_t total)> progress;
};

struct ModelBenchRow {
  std::string kv, method;
  std::int64_t depth = 0;
  int threads = 1;
  Spread tokens_per_s;         // decode: of single steps; prefill: of whole prompts
  double attention_share = 0;  // of the time, in FLASH_ATTN_EXT
  std::optional<double> instructions_per_token;  // median; of the whole model
};

// Tokens that the contexts of bench_decode take: the largest depth and what is decoded there.
std::int64_t decode_context_tokens(const ModelBenchOptions& options);

// A context for each cache, of the largest depth, at the same time; depths are taken ascending. A
// deep cache is filled with a prompt of 512 tokens whose cells are then copied to the positions
// that follow (llama.cpp's state of a sequence, and its shift of keys): the cells hold true keys
// and values at their positions, and only what they mean repeats. Models with sliding windows, or
// whose keys cannot be shifted, decode all tokens. Every step reads all weights, so that the cache
// is as cold as in use. The share is measured in steps of their own.
//
// tokens: a text, repeated where it is too short. Throws as decode does.
std::vector<ModelBenchRow> bench_decode(Workbench* workbench, std::span<const llama_token> tokens,
                                        const std::vector<KvChoice>& kvs,
                                        const ModelBenchOptions& options);

// Prompts from an empty cache, in batches of kBatchTokens.
std::vector<ModelBenchRow> bench_prefill(Workbench* workbench, std::span<const llama_token> tokens,
                                         const std::vector<KvChoice>& kvs,
                                         const ModelBenchOptions& options);

}  // namespace oscar::eval
