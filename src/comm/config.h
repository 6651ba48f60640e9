// A communicator's configuration after defaults and environment.
#pragma once

#include <chrono>
#include <string>

#include "seqpar/seqpar.h"

namespace seqpar {

struct CommConfig {
  std::chrono::milliseconds timeout{300000};
  int transport = seqparTransportAuto;
  int device = SEQPAR_HOST_DEVICE;
  bool checkArguments = false;
  int ctas = 128;                ///< the most CTAs of a collective on a GPU
  void* borrowedNccl = nullptr;  ///< an ncclComm_t of the caller
  std::string hostId;            ///< never empty after resolveConfig()
  std::string interfaceName;     ///< empty: by route
};

/// `parent`, overridden by the fields that `config` (may be null) sets, overridden by the environment. `call` is named
/// in errors.
CommConfig resolveConfig(const char* call, const seqparConfig_t* config, const CommConfig& parent = {});

}  // namespace seqpar
