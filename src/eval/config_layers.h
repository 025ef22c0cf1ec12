// The shape of a model from its Hugging Face config.json.
#pragma once

#include <string>

#include "eval/model_layers.h"

namespace oscar::eval {

// As read_model_layers, for a config.json.
ModelLayers read_config_layers(const std::string& path);

}  // namespace oscar::eval
