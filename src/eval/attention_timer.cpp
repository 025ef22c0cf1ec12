#include "eval/attention_timer.h"

namespace oscar::eval {

bool AttentionTimer::on_node(ggml_tensor* node, bool ask, void* self) {
  AttentionTimer& timer = *static_cast<AttentionTimer*>(self);
  const bool attends = node->op == GGML_OP_FLASH_ATTN_EXT;
  if (ask) return timer.running_ && (attends || node->op == GGML_OP_SET_ROWS);
  const TimingClock::time_point now = TimingClock::now();
  if (attends) timer.seconds_ += std::chrono::duration<double>(now - timer.last_).count();
  timer.last_ = now;
  return true;
}

void AttentionTimer::start() {
  running_ = true;
  seconds_ = 0;
  last_ = TimingClock::now();
}

double AttentionTimer::stop() {
  running_ = false;
  return seconds_;
}

}  // namespace oscar::eval
