// What each layer's keys and values cost a model's predictions when they alone are stored at the
// fewest bits.
#pragma once

#include <llama.h>

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "calibrate/bit_budget.h"
#include "eval/workbench.h"

namespace oscar::eval {

// Tokens held out of the calibration text for it; the predictions of the last half are judged.
inline constexpr std::int64_t kSensitivityTokens = 512;
// Recent tokens that stay exact meanwhile: fewer than in use, so that a short text has many codes.
inline constexpr int kSensitivityRecent = 64;

// Two passes of the model a layer, one for each side, against one with exact keys and values: mean
// KL divergence in nats a token. tokens: kSensitivityTokens of them. progress may be null.
// Throws as decoding does; Error(kInterrupted).
std::vector<calibrate::LayerSensitivity> measure_sensitivity(
    Workbench* workbench, const Artefact& artefact, std::span<const llama_token> tokens,
    const std::function<void(std::int64_t done, std::int64_t total)>& progress);

}  // namespace oscar::eval
