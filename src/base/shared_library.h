// Libraries that are opened at run time, so that ours load where they are not.
#pragma once

#include <string>

namespace seqpar {

/// One that the process has already, from a framework or a wheel, is taken. It is never closed, since such libraries
/// have threads and hooks.
class SharedLibrary {
 public:
  SharedLibrary() = default;
  /// Opens the library of this file name, or knows why not.
  explicit SharedLibrary(const char* name);

  bool opened() const { return file_ != nullptr; }
  /// Why it is not, as the loader says it.
  const std::string& reason() const { return reason_; }

  /// A function by name; null where the library, if there is one, lacks it.
  template <typename Function>
  Function find(const char* function) const {
    return reinterpret_cast<Function>(symbol(function));
  }
  /// The same into a pointer. Of the first that is missing `problem` tells, unless there is one already.
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
