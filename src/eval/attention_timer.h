// Time that a context spends in attention, by way of llama.cpp's callback on graph nodes.
#pragma once

#include <ggml.h>

#include "eval/timing.h"

namespace oscar::eval {

// While it runs, the graph is computed in three pieces a layer: up to the writing of keys, of
// values, and the attention. The last is what is timed. At rest it costs a call a node.
class AttentionTimer {
 public:
  // llama.cpp's eval callback; `self` is an AttentionTimer.
  static bool on_node(ggml_tensor* node, bool ask, void* self);

  void start();
  double stop();  // seconds in FLASH_ATTN_EXT since start()

 private:
  bool running_ = false;
  double seconds_ = 0;
  TimingClock::time_point last_;
};

}  // namespace oscar::eval
