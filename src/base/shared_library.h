// Libraries that are opened at run time, so that this library loads on machines without them.
#pragma once

#include <string>

namespace seqpar {

/// Prefers a copy that the process has already loaded, for example from a framework or a wheel. Never closed, since
/// such libraries have threads and hooks.
class SharedLibrary {
 public:
  SharedLibrary() = default;
  /// Opens the library with this file name, or records the failure.
  explicit SharedLibrary(const char* name);

  bool opened() const { return file_ != nullptr; }
  /// The loader's text if opening failed.
  const std::string& reason() const { return reason_; }

  /// A function by name; null if the library was not opened or does not export it.
  template <typename Function>
  Function find(const char* function) const {
    return reinterpret_cast<Function>(symbol(function));
  }
  /// Stores find() in `into`. The first missing function is reported in `problem`, unless it holds a text already.
  template <typename Function>
  void need(const char* function, Function& into, std::string& problem) const {
    into = find<Function>(function);
    if (into == nullptr && problem.empty()) problem = "a " + name_ + " without " + function;
  }

 private:
  void* symbol(const char* function) const;

  std::string name_, reason_;
  void* file_ = nullptr;
};

}  // namespace seqpar
