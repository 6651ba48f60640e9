#include "base/shared_library.h"

#include <dlfcn.h>

namespace seqpar {

SharedLibrary::SharedLibrary(const char* name) : name_(name), file_(dlopen(name, RTLD_LAZY | RTLD_NOLOAD)) {
  if (file_ == nullptr) file_ = dlopen(name, RTLD_LAZY | RTLD_LOCAL);
  if (file_ != nullptr) return;
  const char* const why = dlerror();
  reason_ = why != nullptr ? why : "the loader does not say why";
}

void* SharedLibrary::symbol(const char* function) const {
  return file_ == nullptr ? nullptr : dlsym(file_, function);
}

}  // namespace seqpar
