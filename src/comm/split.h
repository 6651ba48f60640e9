// New communicators out of an existing one.
#pragma once

#include <memory>

#include "comm/communicator.h"

namespace seqpar {

/// Collective over `parent`: as seqparCommSplit(). Null for SEQPAR_SPLIT_NOCOLOR.
std::shared_ptr<Communicator> splitCommunicator(Communicator& parent, int color, int key, const CommConfig& config);

}  // namespace seqpar
