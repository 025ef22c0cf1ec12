#include <algorithm>
#include <iterator>
#include <string_view>

#include "eval/model_layers.h"

namespace oscar::eval {
namespace {

struct Known {
  std::string_view architecture;
  WindowPattern pattern;
};

// The values of llama.cpp's src/models/*.cpp. Those with period 1 may name a window that llama.cpp
// does not use: it keeps and attends all tokens.
constexpr Known kKnown[] = {
    {"afmoe", {4}},
    {"cohere2", {4}},
    {"cohere2moe", {4, true}},
    {"exaone-moe", {4, false, 128}},
    {"gemma2", {2, false, 4096}},
    {"gemma3", {6}},
    {"gemma3n", {5}},
    {"gpt-oss", {2}},
    {"laguna", {4, true}},
    {"llama4", {4, false, 8192}},
    {"mellum", {4}},
    {"olmo2", {4}},
    {"plamo3", {8}},
    {"smallthinker", {4, true}},
    {"llama", {1}},
    {"mistral3", {1}},
    {"phi3", {1}},
    {"phimoe", {1}},
    {"qwen2", {1}},
    {"qwen2moe", {1}},
    {"qwen2vl", {1}},
    {"qwen3", {1}},
    {"qwen3moe", {1}},
    {"starcoder2", {1}},
};

}  // namespace

WindowPattern window_pattern(const std::string& architecture) {
  const auto* found = std::find_if(std::begin(kKnown), std::end(kKnown), [&](const Known& known) {
    return known.architecture == architecture;
  });
  return found == std::end(kKnown) ? WindowPattern{} : found->pattern;
}

}  // namespace oscar::eval
