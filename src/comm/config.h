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
  int ctas = 128;                ///< maximum CTAs of a collective on a GPU
  void* borrowedNccl = nullptr;  ///< the caller's ncclComm_t
  std::string hostId;            ///< never empty after resolveConfig()
  std::string interfaceName;     ///< empty: chosen by route
};

/// `parent`, overridden by the fields set in `config` (may be null), overridden by the environment. Errors name `call`.
CommConfig resolveConfig(const char* call, const seqparConfig_t* config, const CommConfig& parent = {});

}  // namespace seqpar
