// Where the suites' buffers and streams are allocated, so that one suite serves host and GPU communicators: GPU tests
// replace the backend before they start.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <new>
#include <vector>

#include "common/ranks.h"

namespace seqpar::test {

class Backend {
 public:
  Backend() = default;
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;
  virtual ~Backend() = default;

  /// Memory that the test and the collectives can address.
  virtual void* allocate(std::size_t bytes) { return std::malloc(bytes); }  // NOLINT: an allocator's business
  virtual void release(void* memory) noexcept { std::free(memory); }        // NOLINT

  /// A stream for collectives of the calling rank.
  virtual void* makeStream() {
    seqparStream_t stream = nullptr;
    expectSuccess(seqparStreamCreate(&stream), "seqparStreamCreate");
    return stream;
  }
  virtual void destroyStream(void* stream) {
    expectSuccess(seqparStreamDestroy(static_cast<seqparStream_t>(stream)), "seqparStreamDestroy");
  }
  /// Copies memory, of collectives or of the test, in the order of `stream`, or at once with noStream(); `into` must
  /// stay alive until the stream has executed the copy.
  virtual void copy(void* into, const void* from, std::size_t bytes, void* stream) {
    if (stream == nullptr) {
      std::memcpy(into, from, bytes);
      return;
    }
    struct Copy {
      void* into;
      const void* from;
      std::size_t bytes;
    };
    const auto run = [](void* argument) {
      const std::unique_ptr<Copy> copy(static_cast<Copy*>(argument));
      std::memcpy(copy->into, copy->from, copy->bytes);
    };
    auto work = std::make_unique<Copy>(Copy{into, from, bytes});
    expectSuccess(seqparStreamLaunch(static_cast<seqparStream_t>(stream), run, work.get()), "seqparStreamLaunch");
    work.release();  // run() has it now
  }

  /// For all ranks, around calls that wait for all work on this rank's device: if ranks share a device, such a call
  /// would wait for a kernel that waits for this rank.
  virtual void barrier() {}

  /// Whether work on streams can be captured and replayed.
  virtual bool hasGraphs() const { return false; }
  /// Captures the work that `body` enqueues on `stream`, for replay; capture() does not run it.
  virtual void* capture(void*, const std::function<void()>&) { return nullptr; }
  virtual void replay(void*, void*) {}
  virtual void releaseGraph(void*) {}

  /// The `stream` argument for calls without a separate stream.
  virtual void* noStream() { return nullptr; }
  /// Waits for the work on `stream`.
  virtual void synchronize(void* stream) {
    if (stream == nullptr) return;
    expectSuccess(seqparStreamSynchronize(static_cast<seqparStream_t>(stream)), "seqparStreamSynchronize");
  }
};

/// The one in use.
inline Backend*& backend() {
  static Backend host;
  static Backend* current = &host;
  return current;
}

template <typename Value>
struct BackendAllocator {
  using value_type = Value;
  BackendAllocator() = default;
  template <typename Other>
  explicit(false) BackendAllocator(const BackendAllocator<Other>&) {}

  Value* allocate(std::size_t count) {
    void* memory = backend()->allocate(count * sizeof(Value));
    if (memory == nullptr) throw std::bad_alloc();
    return static_cast<Value*>(memory);
  }
  void deallocate(Value* memory, std::size_t) noexcept { backend()->release(memory); }
  friend bool operator==(const BackendAllocator&, const BackendAllocator&) { return true; }
};

/// A vector in the memory of the backend.
template <typename Value>
using Vector = std::vector<Value, BackendAllocator<Value>>;

/// A stream of the backend for a scope.
class Stream {
 public:
  Stream() : stream_(backend()->makeStream()) {}
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  ~Stream() {
    try {
      backend()->destroyStream(stream_);
    } catch (const std::exception&) {
    }  // a stream that cannot be destroyed fails the next call
  }
  void* get() const { return stream_; }
  void synchronize() const { backend()->synchronize(stream_); }

 private:
  void* stream_;
};

}  // namespace seqpar::test
