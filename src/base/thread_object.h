// A thread's own object, which calls may use until the very end of the thread.
#pragma once

#include <cxxabi.h>

#include <cstddef>
#include <memory>
#include <new>

extern "C" void* __dso_handle;  // NOLINT(*-reserved-identifier,*-identifier-naming): of the ABI; identifies the library

namespace seqpar {

/// The calling thread's only Object. Unlike a thread_local Object, it may be used in destructors of objects that the
/// thread destroys later, such as a program's global objects at exit: it is then made again.
template <typename Object>
Object& ofThread() noexcept(noexcept(Object())) {
  struct Memory {
    alignas(Object) std::byte bytes[sizeof(Object)];
    Object* object;
  };
  thread_local constinit Memory memory{};
  if (memory.object == nullptr) {
    memory.object = std::construct_at(reinterpret_cast<Object*>(memory.bytes));
    // A thread_local object with a destructor would register that destructor only once.
    const auto end = [](void* of) {
      static_cast<Memory*>(of)->object = nullptr;
      std::destroy_at(std::launder(reinterpret_cast<Object*>(static_cast<Memory*>(of)->bytes)));
    };
    abi::__cxa_thread_atexit(end, &memory, &__dso_handle);
  }
  return *memory.object;
}

}  // namespace seqpar
