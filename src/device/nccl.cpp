#include "device/nccl.h"

#include "device/nccl_library.h"

namespace seqpar {

std::string ncclReport() {
  const NcclFound& found = findNccl();
  if (!found.problem.empty()) return found.problem;
  const std::string words = concat("NCCL ", ncclVersionInWords(found.library.version));
  if (found.library.version == NCCL_VERSION_CODE) return words;
  return concat(words, " (built for ", ncclVersionInWords(NCCL_VERSION_CODE), ")");
}

}  // namespace seqpar
