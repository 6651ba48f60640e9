#include "attn/exec/host.h"

#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>

#include "attn/boundary.h"
#include "base/convert.h"
#include "base/memory.h"

namespace seqpar::attn {
namespace {

constexpr const char* kCaller = "attention on a host";

/// Tokens per task of a copying thread: some 64 KiB.
int64_t tokensOfTask(const Tensor& shape) {
  const int64_t bytes = std::max<int64_t>(1, shape.heads * shape.dim * static_cast<int64_t>(bytesOf(shape.type)));
  return std::max<int64_t>(1, (int64_t{64} << 10) / bytes);
}

/// Heads of a token that are contiguous in both tensors, as one run; otherwise one run per head.
struct RunsOfToken {
  RunsOfToken(const Tensor& a, const Tensor& b) {
    const bool joined = a.heads == 1 || (a.headStride == a.dim && b.headStride == b.dim);
    count = joined ? 1 : a.heads;
    length = static_cast<size_t>(joined ? a.heads * a.dim : a.dim);
  }
  int64_t count;
  size_t length;
};

void poison(const Tensor& tensor) {
  std::vector<float> bad(static_cast<size_t>(tensor.dim), std::numeric_limits<float>::quiet_NaN());
  for (int64_t b = 0; b < tensor.batch; ++b) {
    for (int64_t t = 0; t < tensor.tokens; ++t) {
      for (int64_t h = 0; h < tensor.heads; ++h) fromFloat(bad.data(), tensor.at(b, t, h), tensor.type, bad.size());
    }
  }
}

}  // namespace

HostExec::HostExec(int threads, seqparComm_t comm) : pool_(threads), comm_(comm) {
  require(seqparStreamCreate(&side_), kCaller, nullptr);
  require(seqparEventCreate(&forked_), kCaller, nullptr);
  require(seqparEventCreate(&joined_), kCaller, nullptr);
}

HostExec::~HostExec() {
  seqparStreamDestroy(side_);
  seqparEventDestroy(forked_);
  seqparEventDestroy(joined_);
}

std::shared_ptr<void> HostExec::allocate(size_t bytes, const char* what) {
  // Each pass streams states and partial sums through memory: small pages would cost linear attention 6 % of a step.
  constexpr size_t kLargePage = size_t{2} << 20;
  const size_t alignment = bytes >= kLargePage ? kLargePage : Arena::kAlignment;
  size_t room = bytes + alignment;
  const std::shared_ptr<std::byte[]> memory =
      allocateFor(what, bytes, [&] { return std::make_unique_for_overwrite<std::byte[]>(room); });
  void* aligned = memory.get();
  std::align(alignment, bytes, aligned, room);
  if (alignment == kLargePage) madvise(aligned, bytes, MADV_HUGEPAGE);  // a hint: it may be refused
  return {memory, aligned};
}

void HostExec::begin(void* stream) {
  main_ = static_cast<seqparStream_t>(stream);
  // join() without a stream throws the errors of the side stream. Errors of earlier calls on a stream do not belong to
  // this call.
  if (main_ == nullptr) seqparStreamSynchronize(side_);
  launch([this] { failed_ = false; });
}

void HostExec::guard(std::span<const Tensor> outputs) {
  outputs_.assign(outputs.begin(), outputs.end());
}

void HostExec::finish() {
  if (main_ != nullptr) {
    launch([this, outputs = std::move(outputs_)] {
      // Operations that finished before their communicator was lost also count as failed: they cannot be distinguished.
      seqparResult_t state = seqparSuccess;
      const bool aborted = comm_ != nullptr && seqparCommGetAsyncError(comm_, &state) != seqparSuccess;
      if (!failed_ && !aborted && state == seqparSuccess) return;
      for (const auto& tensor : outputs) poison(tensor);
      if (aborted) fail(seqparRemoteError, "the communicator was aborted");
      if (state != seqparSuccess) fail(state, seqparGetLastError(comm_));
    });
  }
  outputs_.clear();
  main_ = nullptr;
}

void HostExec::enqueue(seqparStream_t stream, std::function<void()> work) {
  if (stream == nullptr) return work();
  struct Entry {
    HostExec* exec;
    seqparStream_t stream;
    std::function<void()> work;
    void fail(seqparResult_t result, const char* text) const {
      exec->failed_ = true;
      seqparStreamFail(stream, result, text);
    }
  };
  auto entry = std::make_unique<Entry>(Entry{this, stream, std::move(work)});
  const auto run = [](void* argument) {
    const std::unique_ptr<Entry> mine(static_cast<Entry*>(argument));
    HostExec& exec = *mine->exec;
    try {
      mine->work();
    } catch (const Error& error) {
      mine->fail(error.result(), error.what());
    } catch (const std::bad_alloc&) {
      mine->fail(seqparSystemError, kNoMemory);
    } catch (const std::exception& error) {
      mine->fail(seqparInternalError, error.what());
    }
    const std::lock_guard lock(exec.mutex_);
    if (--exec.pending_ == 0) exec.idle_.notify_all();
  };
  {
    const std::lock_guard lock(mutex_);
    ++pending_;
  }
  if (const auto result = seqparStreamLaunch(stream, run, entry.get()); result != seqparSuccess) {
    const std::lock_guard lock(mutex_);
    --pending_;
    require(result, kCaller, nullptr);
  }
  static_cast<void>(entry.release());
}

void HostExec::awaitSideWork() noexcept {
  if (main_ != nullptr) return;
  seqparStreamSynchronize(side_);
  if (comm_ != nullptr) seqparCommFinalize(comm_);  // on a lost communicator: waits for this rank's operations
}

void HostExec::drain() noexcept {
  seqparStreamSynchronize(side_);
  std::unique_lock lock(mutex_);
  idle_.wait(lock, [&] { return pending_ == 0; });
}

void HostExec::fork() {
  if (main_ == nullptr) return;  // all earlier work is done
  require(seqparEventRecord(forked_, main_), kCaller, nullptr);
  require(seqparStreamWaitEvent(side_, forked_), kCaller, nullptr);
}

void HostExec::join() {
  if (main_ == nullptr) {
    require(seqparStreamSynchronize(side_), kCaller, nullptr);
    return;
  }
  require(seqparEventRecord(joined_, side_), kCaller, nullptr);
  require(seqparStreamWaitEvent(main_, joined_), kCaller, nullptr);
}

void HostExec::eachToken(const Tensor& shape, const std::function<void(int64_t, int64_t)>& body) {
  const int64_t step = tokensOfTask(shape);
  const int64_t tasks = (shape.tokens + step - 1) / step;
  pool_.each(static_cast<size_t>(shape.batch * tasks), [&](size_t task, int) {
    const int64_t b = static_cast<int64_t>(task) / tasks, first = static_cast<int64_t>(task) % tasks * step;
    for (int64_t t = first; t < std::min(first + step, shape.tokens); ++t) body(b, t);
  });
}

void HostExec::copy(const Tensor& to, const Tensor& from) {
  if (to.elements() == 0) return;
  launch([this, to, from] {
    const RunsOfToken runs(to, from);
    eachToken(to, [&](int64_t b, int64_t t) {
      for (int64_t h = 0; h < runs.count; ++h)
        convert(from.at(b, t, h), from.type, to.at(b, t, h), to.type, runs.length);
    });
  });
}

void HostExec::copy(const Rows& to, const Rows& from) {
  launch([to, from] {
    for (int64_t b = 0; b < to.batch; ++b) {
      for (int64_t h = 0; h < to.heads; ++h) std::copy_n(from.at(b, h, 0), to.tokens, to.at(b, h, 0));
    }
  });
}

void HostExec::add(const Tensor& to, const Tensor& from) {
  if (to.elements() == 0) return;
  launch([this, to, from] {
    const RunsOfToken runs(to, from);
    eachToken(to, [&](int64_t b, int64_t t) {
      constexpr size_t kPart = 256;
      float sum[kPart], term[kPart];
      for (int64_t h = 0; h < runs.count; ++h) {
        for (size_t begin = 0; begin < runs.length; begin += kPart) {
          const size_t count = std::min(kPart, runs.length - begin);
          auto* const target = to.at(b, t, h) + begin * bytesOf(to.type);
          toFloat(from.at(b, t, h) + begin * bytesOf(from.type), from.type, term, count);
          toFloat(target, to.type, sum, count);
          for (size_t i = 0; i < count; ++i) sum[i] += term[i];
          fromFloat(sum, target, to.type, count);
        }
      }
    });
  });
}

void HostExec::zero(const Tensor& tensor) {
  if (tensor.elements() == 0) return;
  launch([this, tensor] {
    const RunsOfToken runs(tensor, tensor);
    eachToken(tensor, [&](int64_t b, int64_t t) {
      for (int64_t h = 0; h < runs.count; ++h) std::memset(tensor.at(b, t, h), 0, runs.length * bytesOf(tensor.type));
    });
  });
}

void HostExec::fill(const Rows& rows, float value) {
  launch([rows, value] {
    for (int64_t b = 0; b < rows.batch; ++b) {
      for (int64_t h = 0; h < rows.heads; ++h) std::fill_n(rows.at(b, h, 0), rows.tokens, value);
    }
  });
}

}  // namespace seqpar::attn
