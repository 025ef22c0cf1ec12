// What stands in front of llama-server when slots are saved: every connection is passed on as it
// is, but for the saving and restoring of slots.
//
// A save goes to a name of its own and is renamed when it is whole, so that whatever ends the
// server leaves the old file as it was. A restore is passed on only when the file fits this model,
// cache and server; otherwise the answer is a 4xx that names the difference, and llama-server never
// hears of it, so that the slot keeps what it holds. Whatever else is sent to the slots' path is
// refused rather than passed on: no other spelling of it reaches the server.
#pragma once

#include <string>

#include "slot_file.h"
#include "socket.h"

namespace oscar::tool {

struct SlotProxyOptions {
  std::string upstream;     // llama-server's Unix socket
  std::string slot_folder;  // --slot-save-path
  SlotIdentity identity;
  std::int64_t num_slots = 1;
};

struct SlotRequest;

class SlotProxy {
 public:
  // Removes what saves that were cut short have left in the folder.
  explicit SlotProxy(SlotProxyOptions options);

  // One connection, one request; returns when it is over. Any number of threads.
  void serve(const Socket& client) const;

 private:
  std::string answer_slot(const SlotRequest& slot, const std::string& auth,
                          const std::string& body) const;
  std::string answer_save(const SlotRequest& slot, const std::string& auth,
                          const std::string& name) const;
  std::string answer_restore(const SlotRequest& slot, const std::string& auth,
                             const std::string& name) const;
  // The answer to a request without a body to pass on; "" when llama-server cannot be asked.
  std::string ask(const std::string& method, const std::string& target, const std::string& auth,
                  const std::string& body) const;

  SlotProxyOptions options_;
};

}  // namespace oscar::tool
