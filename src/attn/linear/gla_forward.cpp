// seqparGlaForward(): the order of the passes around the scan.
#include <algorithm>
#include <atomic>
#include <limits>
#include <memory>
#include <optional>
#include <type_traits>

#include "attn/boundary.h"
#include "attn/linear/gla_arguments.h"

namespace seqpar::attn {
namespace {

constexpr const char* kCall = "seqparGlaForward";

void runOnOneRank(const GlaArguments& arguments) {
  const size_t states = arguments.problem.allHeads() * arguments.problem.stateSize();
  if (arguments.savedState != nullptr) {
    if (arguments.initial != nullptr) {
      std::copy_n(arguments.initial, states, arguments.savedState);
    } else {
      std::fill_n(arguments.savedState, states, 0.0f);
    }
  }
  glaLocal(arguments.problem, arguments.initial, arguments.finalState);
}

using Stream = std::unique_ptr<std::remove_pointer_t<seqparStream_t>, decltype(&seqparStreamDestroy)>;
using Event = std::unique_ptr<std::remove_pointer_t<seqparEvent_t>, decltype(&seqparEventDestroy)>;

Stream makeStream() {
  seqparStream_t stream = nullptr;
  require(seqparStreamCreate(&stream), kCall, nullptr);
  return {stream, &seqparStreamDestroy};
}

Event makeEvent() {
  seqparEvent_t event = nullptr;
  require(seqparEventCreate(&event), kCall, nullptr);
  return {event, &seqparEventDestroy};
}

/// One distributed call: its passes and the state that comes in.
class Distributed {
 public:
  explicit Distributed(const GlaArguments& arguments) : arguments_(arguments), passes_(arguments.problem) {
    const size_t states = arguments.problem.allHeads() * arguments.problem.stateSize();
    if (arguments.savedState == nullptr) ownIncoming_ = std::make_unique_for_overwrite<float[]>(states);
    incoming_ = arguments.savedState != nullptr ? arguments.savedState : ownIncoming_.get();
    // What a failed scan leaves must not look like a state.
    std::fill_n(incoming_, states, std::numeric_limits<float>::quiet_NaN());
  }

  void states() {
    try {
      passes_.states();
    } catch (...) {
      passes_.spoilRankState();
      throw;
    }
  }
  void scan(seqparStream_t stream) {
    require(seqparAllScan(passes_.rankState(), passes_.rankLogDecay(), arguments_.initial, incoming_,
                          arguments_.finalState, &arguments_.scan, arguments_.comm, stream),
            kCall, arguments_.comm);
  }
  void withinChunks() { passes_.withinChunks(); }
  void acrossChunks() { passes_.acrossChunks(incoming_); }

 private:
  GlaArguments arguments_;
  GlaPasses passes_;
  std::unique_ptr<float[]> ownIncoming_;
  float* incoming_ = nullptr;
};

void runNow(const GlaArguments& arguments) {
  if (arguments.ranks == 1) {
    runOnOneRank(arguments);
    return;
  }
  Distributed call(arguments);
  const Stream side = makeStream();  // ends before `call`, on which its work depends
  call.states();
  call.scan(side.get());
  call.withinChunks();
  require(seqparStreamSynchronize(side.get()), kCall, arguments.comm);
  call.acrossChunks();
}

/// A call that is on its way on the caller's stream, whose last piece of work deletes it.
class Enqueued {
 public:
  explicit Enqueued(const GlaArguments& arguments) : arguments_(arguments) {
    if (arguments.ranks == 1) return;
    distributed_.emplace(arguments);
    side_ = makeStream();
    statesDone_ = makeEvent();
    withinDone_ = makeEvent();
  }

  static void enqueue(const GlaArguments& arguments, seqparStream_t stream) {
    auto call = std::make_unique<Enqueued>(arguments);
    if (arguments.ranks == 1) {
      call->launch(stream, [](void* self) { finish(self, [](Enqueued& c) { runOnOneRank(c.arguments_); }); });
    } else {
      call->enqueueDistributed(stream);
    }
    static_cast<void>(call.release());
  }

 private:
  void launch(seqparStream_t stream, void (*function)(void*)) {
    require(seqparStreamLaunch(stream, function, this), kCall, nullptr);
  }

  /// The scan runs on the caller's stream, whose error its failure then is, and the work beside it on one of our own.
  void enqueueDistributed(seqparStream_t stream) {
    launch(stream, [](void* self) { attempt(self, [](Enqueued& c) { c.distributed_->states(); }); });
    try {
      require(seqparEventRecord(statesDone_.get(), stream), kCall, nullptr);
      require(seqparStreamWaitEvent(side_.get(), statesDone_.get()), kCall, nullptr);
      launch(side_.get(), [](void* self) { attempt(self, [](Enqueued& c) { c.distributed_->withinChunks(); }); });
      require(seqparEventRecord(withinDone_.get(), side_.get()), kCall, nullptr);
      distributed_->scan(stream);
      require(seqparStreamWaitEvent(stream, withinDone_.get()), kCall, nullptr);
      launch(stream, [](void* self) { finish(self, [](Enqueued& c) { c.distributed_->acrossChunks(); }); });
    } catch (...) {
      seqparStreamSynchronize(stream);  // its work uses what the caller is about to delete
      throw;
    }
  }

  /// Work on a stream cannot return an error: it is kept, and spoils the result.
  template <typename Work>
  static void attempt(void* self, Work work) noexcept {
    auto& call = *static_cast<Enqueued*>(self);
    try {
      work(call);
    } catch (const std::exception& error) {
      setLastError(error.what());
      call.failed_ = true;
    }
  }

  template <typename Work>
  static void finish(void* self, Work work) noexcept {
    attempt(self, work);
    const std::unique_ptr<Enqueued> call(static_cast<Enqueued*>(self));
    if (call->failed_) {
      const auto& problem = call->arguments_.problem;
      std::fill_n(problem.out, problem.tokens * problem.allHeads() * problem.dv,
                  std::numeric_limits<float>::quiet_NaN());
    }
  }

  GlaArguments arguments_;
  std::optional<Distributed> distributed_;
  std::atomic<bool> failed_{false};
  Event statesDone_{nullptr, &seqparEventDestroy}, withinDone_{nullptr, &seqparEventDestroy};
  Stream side_{nullptr, &seqparStreamDestroy};
};

}  // namespace
}  // namespace seqpar::attn

seqparResult_t seqparGlaForward(const void* q, const void* k, const void* v, const float* logDecay,
                                const float* initial, void* out, float* savedState, float* finalState,
                                const seqparGlaParams_t* params, seqparComm_t comm, void* stream) {
  using namespace seqpar::attn;
  return guard(kCall, [&] {
    const auto arguments = checkGla(kCall, q, k, v, logDecay, initial, out, savedState, finalState, params, comm);
    if (stream == nullptr) {
      runNow(arguments);
    } else {
      Enqueued::enqueue(arguments, static_cast<seqparStream_t>(stream));
    }
  });
}
