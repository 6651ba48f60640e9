// Where the suites' buffers and streams live, so that one suite serves host and GPU communicators: tests of GPUs put
// another backend in place before they start.
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
  /// live until the stream has come past it.
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

  /// For all ranks, around calls that wait for whatever runs on this rank's device: where ranks share one, such a call
  /// would wait for a kernel that waits for this rank.
  virtual void meet() {}

  /// Whether what is enqueued on streams can be captured and replayed.
  virtual bool hasGraphs() const { return false; }
  /// What `body` enqueues on `stream`, to be replayed; capture() does not run it.
  virtual void* capture(void*, const std::function<void()>&) { return nullptr; }
  virtual void replay(void*, void*) {}
  virtual void releaseGraph(void*) {}

  /// What a call is given that is meant to have no stream of its own.
  virtual void* noStream() { return nullptr; }
  /// Waits for what was enqueued on `stream`.
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

/// A vector that collectives can be given.
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
    }  // a stream that cannot be destroyed fails the call that comes next
  }
  void* get() const { return stream_; }
  void synchronize() const { backend()->synchronize(stream_); }

 private:
  void* stream_;
};

}  // namespace seqpar::test
