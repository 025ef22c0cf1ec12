// A small artefact with every part, made of numbers that a fuzzer keeps.
#pragma once

#include "format/artefact.h"

// One layer of two KV heads at head size 32; transforms are cyclic shifts: orthogonal, exact, not
// symmetric. with_options adds every optional tensor.
oscar::Artefact seed_artefact(bool with_options);
