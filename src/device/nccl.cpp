#include "device/nccl.h"

#include <dlfcn.h>
#include <nccl.h>

#include <memory>

#include "base/error.h"

namespace seqpar {
namespace {

struct CloseLibrary {
  void operator()(void* library) const noexcept { dlclose(library); }
};

std::string versionInWords(int code) {
  return concat(code / 10000, ".", code / 100 % 100, ".", code % 100);
}

}  // namespace

std::string ncclReport() {
  const std::unique_ptr<void, CloseLibrary> library(dlopen("libnccl.so.2", RTLD_LAZY | RTLD_LOCAL));
  if (!library) return "no libnccl.so.2";
  const auto getVersion = reinterpret_cast<decltype(&ncclGetVersion)>(dlsym(library.get(), "ncclGetVersion"));
  int version = 0;
  if (getVersion == nullptr || getVersion(&version) != ncclSuccess) return "a libnccl.so.2 that tells no version";
  const std::string words = concat("NCCL ", versionInWords(version));
  if (version == NCCL_VERSION_CODE) return words;
  return concat(words, " (built for ", versionInWords(NCCL_VERSION_CODE), ")");
}

}  // namespace seqpar
