#include "device/device.h"

namespace seqpar {

std::string deviceReport() {
  return "built without CUDA";
}

}  // namespace seqpar
