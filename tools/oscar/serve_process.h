// llama-server as a child behind the slot proxy.
#pragma once

#include <string>
#include <vector>

#include "slot_proxy.h"
#include "subprocess.h"

namespace oscar::tool {

// Starts the server on a Unix socket of its own, passes connections of `listener` on, and returns
// the server's exit status when it ends. The first SIGINT or SIGTERM is passed on to it.
int serve_behind_proxy(Socket listener, const std::vector<std::string>& server_command,
                       const Environment& environment, SlotProxyOptions options);

}  // namespace oscar::tool
