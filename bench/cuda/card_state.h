// Clocks and power of the card while it works, read through NVML where the driver has it.
#pragma once

#include <dlfcn.h>

#include <optional>

namespace oscar::bench {

struct CardState {
  unsigned sm_mhz = 0, memory_mhz = 0;
  double watts = 0;
  unsigned long long limits = 0;  // NVML's reasons for a lower clock, a bit mask; 4: power
};

// The first card. NVML is loaded at run time: benchmarks need not link it.
class CardMonitor {
 public:
  CardMonitor() {
    library_ = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library_ == nullptr) return;
    const auto init = function<int (*)()>("nvmlInit_v2");
    const auto get = function<int (*)(unsigned, void**)>("nvmlDeviceGetHandleByIndex_v2");
    clock_ = function<Clock>("nvmlDeviceGetClockInfo");
    power_ = function<Power>("nvmlDeviceGetPowerUsage");
    reasons_ = function<Reasons>("nvmlDeviceGetCurrentClocksThrottleReasons");
    is_ready_ = init && get && clock_ && power_ && reasons_ && init() == 0 && get(0, &device_) == 0;
  }
  CardMonitor(const CardMonitor&) = delete;
  CardMonitor& operator=(const CardMonitor&) = delete;

  // Nothing where NVML is missing or refuses.
  std::optional<CardState> read() const {
    if (!is_ready_) return std::nullopt;
    CardState state;
    unsigned milliwatts = 0;
    constexpr int kSm = 1, kMemory = 2;
    if (clock_(device_, kSm, &state.sm_mhz) != 0 ||
        clock_(device_, kMemory, &state.memory_mhz) != 0 || power_(device_, &milliwatts) != 0 ||
        reasons_(device_, &state.limits) != 0) {
      return std::nullopt;
    }
    state.watts = milliwatts * 1e-3;
    return state;
  }

 private:
  using Clock = int (*)(void*, int, unsigned*);
  using Power = int (*)(void*, unsigned*);
  using Reasons = int (*)(void*, unsigned long long*);
  template <typename Function>
  Function function(const char* name) const {
    return reinterpret_cast<Function>(dlsym(library_, name));
  }

  void* library_ = nullptr;
  void* device_ = nullptr;
  Clock clock_ = nullptr;
  Power power_ = nullptr;
  Reasons reasons_ = nullptr;
  bool is_ready_ = false;
};

}  // namespace oscar::bench
