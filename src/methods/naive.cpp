// Rows as they are, affine codes for each token and KV head: the floor.
#include "methods/definition.h"

namespace oscar::methods {

const Definition kNaive = {
    .summary = "no rotation, per token",
    .k = {},
    .v = {},
};

}  // namespace oscar::methods
