// llama-server as a child behind the slot proxy.
#pragma once

#include <string>
#include <vector>

#include "slot_proxy.h"
#include "subprocess.h"

namespace oscar::tool {

inline constexpr int kGraceSeconds = 10;

// Starts the server on a Unix socket of its own, passes connections of `listener` on, and returns
// the server's exit status when it ends. The first SIGINT, SIGTERM, SIGHUP or SIGQUIT stops it with
// SIGTERM; kGraceSeconds later, or with a second signal, it is killed: llama-server waits for
// clients whose requests it no longer works on.
int serve_behind_proxy(Socket listener, const std::vector<std::string>& server_command,
                       const Environment& environment, SlotProxyOptions options);

}  // namespace oscar::tool
