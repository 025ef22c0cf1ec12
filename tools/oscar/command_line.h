// The command that this process runs, for results that say how to get them again.
#pragma once

#include <string>

namespace oscar::tool {

// In shell syntax, the program by its name alone; "" where the system does not say.
std::string command_line();

}  // namespace oscar::tool
