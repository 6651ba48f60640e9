// One rank's membership in a group: control plane, mailbox, measured links, and the order of its operations.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/health.h"
#include "base/owned_counter.h"
#include "base/thread_variable.h"
#include "bootstrap/control.h"
#include "comm/agreement.h"
#include "comm/call_log.h"
#include "comm/config.h"
#include "comm/one_caller.h"
#include "comm/ordered_control.h"
#include "comm/outer_call.h"
#include "comm/stream.h"
#include "device/group.h"
#include "plan/link.h"
#include "plan/topology.h"
#include "transport/mailbox.h"

namespace seqpar {

class Lineage;

/// A call's stream, of the communicator's kind. Both null: the calling thread, or the default stream.
struct CallerStream {
  std::shared_ptr<HostStream> host;
  DeviceStream device = nullptr;
};

/// The origin of a communicator that replaces a failed one.
struct Descent {
  std::shared_ptr<Lineage> lineage;
  uint32_t epoch = 0;
  std::vector<int> members;      ///< ranks of the first communicator of the lineage
  std::vector<int> parentRanks;  ///< likewise, ranks of the failed communicator
};

class Communicator {
 public:
  /// Collective over `oob`.
  Communicator(Allgather& oob, CommConfig config, Descent descent = {});
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;
  ~Communicator();

  int rank() const { return control_->rank(); }
  int size() const { return control_->size(); }
  const CommConfig& config() const { return config_; }
  const Topology& topology() const { return topology_; }
  const LinkModel& links() const { return links_; }
  /// For a device communicator: kernels above this layer measure its links.
  void recordLinks(const LinkModel& links) { links_ = links; }
  /// The GPU side; null on a host communicator.
  DeviceGroup* device() const { return device_.get(); }
  /// Host communicators only.
  const Mailbox& mailbox() const { return *mailbox_; }
  const MailboxDescription& transport() const { return transport_; }
  Control& control() { return *control_; }
  const Health& health() const { return health_; }
  CallLog& calls() { return calls_; }
  /// Empty lineage: a communicator of one rank.
  const Descent& descent() const { return descent_; }

  /// Runs `work` after all earlier operations of this communicator: in the call without a stream, on the stream with
  /// one. An Error inside an operation leaves its messages half sent, so it ends the communicator. An operation on a
  /// stream with failed work (HostStream::fail()) also ends the communicator: it would send invalid data. `name` is a
  /// literal.
  template <typename Work>
  void run(const char* name, HostStream* stream, Work work) {
    const OneCaller::Scope alone(config_.checkArguments ? &caller_ : nullptr, name, health_);
    const uint64_t ticket = issue(name);
    const CallReference record = calls_.operation(name, stream != nullptr);
    if (stream == nullptr && !config_.checkArguments && !OuterCall::isOn(this)) {
      return execute(ticket, name, std::cref(work), record);
    }
    auto comparison = config_.checkArguments ? takeComparison() : nullptr;
    const auto call = OuterCall::current(this);
    if (stream == nullptr) {
      execute(ticket, name, std::cref(work), comparison.get(), record, call.get());
    } else {
      enqueue(*stream, ticket, name,
              [this, stream, ticket, name, record, call, work = std::move(work), comparison = std::move(comparison)] {
                const auto spoiled = stream->spoiled();
                if (spoiled) lose(spoiled->error.what());
                execute(ticket, name, std::cref(work), comparison.get(), record, call.get());
              });
    }
  }

  /// Records that all ranks issue the thread's current call with equal `values`. With config().checkArguments, also
  /// compares them with the other ranks', without waiting for the ranks here, since different ranks may call two
  /// communicators in different orders. On a host, the comparison is the first step of the call's next operation: a
  /// difference is InvalidUsage instead of the operation, and the communicator stays usable. On a device it runs
  /// concurrently with the work, and a difference ends the communicator.
  void compareNext(const char* call, std::span<const NamedValue> values);
  /// Likewise with values from calls().keep().
  void compareNext(const char* call, const CallValues& values);
  /// Likewise, plus values that must be equal only among `members`, a group with this rank.
  void compareNext(const char* call, std::span<const NamedValue> values, std::vector<int> members,
                   std::span<const NamedValue> ofMembers);
  /// For a call of only `members`: compares among these, on hosts.
  void compareNextOfGroup(const char* call, std::vector<int> members, std::span<const NamedValue> values);
  /// For calls that wait for the other ranks anyway: compares immediately; a difference is InvalidUsage.
  void compareNow(const char* call, std::span<const NamedValue> values);
  /// To be called at the end of each call: runs the pending comparison if the call had no operation because there was
  /// nothing to do. A difference ends the communicator.
  void compareAtLast() {
    if (config_.checkArguments) comparePending();
  }
  /// Discards the calling thread's pending comparison. For calls that fail.
  static void dropComparison() noexcept {
    if (pendingOf_ != nullptr) discardPending();
  }
  /// Sets the calling thread's pending comparison aside while it exists.
  class HeldComparison {
   public:
    HeldComparison() noexcept;
    HeldComparison(const HeldComparison&) = delete;
    HeldComparison& operator=(const HeldComparison&) = delete;
    ~HeldComparison();

   private:
    const Communicator* comm_;
    std::shared_ptr<const Comparison> comparison_;
  };

  /// run() of a device communicator: `launch(DeviceGroup&)` enqueues its work on `stream`, a cudaStream_t. An Error
  /// that it throws after it has launched a part ends the communicator.
  template <typename Launch>
  void enqueue(const char* name, DeviceStream stream, Launch launch) {
    enqueueOnDevice(name, stream, [this, &launch] { launch(*device_); });
  }

  /// Collective: waits for this rank's operations, then for all other ranks to call it.
  void finalize();
  /// finalize() if it was not called, then exchanges byes with the other ranks. After a failure: only waits for this
  /// rank's operations to give up.
  void close();
  /// The next communication belongs to a new call of the program; see CallSequence.
  void nextCall() noexcept { control_->nextCall(); }
  /// Throws if the communicator cannot be used. On a device: also if another rank refuses this call, now or,
  /// asynchronously, later. For calls with kernels of another library, which wait for other ranks without an operation
  /// of this communicator.
  void startCall(const char* name);
  /// Tells the other ranks that this rank refuses its call.
  void refuse(const char* call, const std::string& why);
  /// Fails this rank and all other ranks at once. May be called from any thread.
  void lose(std::string_view why);
  /// Likewise, because the program asked for it.
  void revoke();
  /// For a communicator that replaces a failed one, once it exists on all ranks: takes part in the next vote.
  void enterLineage();
  /// For the creation of a communicator of these ranks: fails when this one does. One at a time.
  std::shared_ptr<Health> healthOfChild();
  /// After a failure: waits until this rank's operations have given up.
  void giveUp();
  void abort();

  /// Throws if the communicator is lost or finalized.
  void requireUse(const char* name) const;

  /// The text of the latest error of a call, or of an operation on a stream.
  void keepError(std::string_view text) noexcept;
  std::string lastError() const;

 private:
  uint64_t issue(const char* name);
  /// Enqueues `work`, which runs in the turn of `ticket`.
  template <typename Work>
  void enqueue(HostStream& stream, uint64_t ticket, const char* name, Work&& work) {
    try {
      stream.enqueue(std::forward<Work>(work));
    } catch (const std::exception&) {
      failEnqueue(ticket, name);
    }
  }
  /// Throws the current exception again, after it has ended the turn of `ticket`, which later operations wait for.
  [[noreturn]] void failEnqueue(uint64_t ticket, const char* name);
  /// Runs `work` in the turn of `ticket`, after the comparison and as a part of `call` if they are not null.
  void execute(uint64_t ticket, const char* name, const std::function<void(Mailbox&)>& work,
               const Comparison* comparison, CallReference record = {}, OuterCall* call = nullptr);
  void execute(uint64_t ticket, const char* name, const std::function<void(Mailbox&)>& work,
               const CallReference& record);
  void finishTurn(uint64_t ticket) noexcept;
  /// Likewise at less cost, in a call on the communicator, which ends only after the call has left.
  void finishTurnInCall(uint64_t ticket) noexcept;
  /// Ends the communicator and the turn because of the current exception, and throws it again.
  [[noreturn]] void failTurn(uint64_t ticket, const char* name);
  std::shared_ptr<const Comparison> takeComparison();
  void comparePending();
  static void discardPending() noexcept;
  /// Waits until all tickets before `ticket` have been served.
  void awaitTurn(uint64_t ticket);
  void compareNext(const char* call, Comparison comparison);
  /// Records a call of all ranks. On a device, they compare its digest later, with their heartbeats.
  template <typename Values>
  void record(const char* call, const Values& values) noexcept;
  void enqueueOnDevice(const char* name, DeviceStream stream, const std::function<void()>& launch);
  void adoptLineage();
  void failChild(std::string_view text) noexcept;
  void connect();
  void drain();

  /// The communicator of the calling thread's pending comparison; null: none.
  SEQPAR_THREAD_VARIABLE static inline thread_local constinit const Communicator* pendingOf_ = nullptr;

  Health health_;
  std::mutex originMutex_;  ///< of descent_ and calls_' identity, while a failure may interrupt the creation
  std::mutex childMutex_;
  std::weak_ptr<Health> child_;  ///< of healthOfChild()
  CallLog calls_;
  CommConfig config_;
  Descent descent_;
  std::unique_ptr<Control> control_;
  OrderedControl* ordered_ = nullptr;  ///< control_, if it compares arguments
  Topology topology_;
  MailboxDescription transport_;
  std::unique_ptr<Mailbox> mailbox_;     ///< of a host communicator
  std::unique_ptr<DeviceGroup> device_;  ///< of a device communicator
  LinkModel links_;

  /// Flag in servedTickets_: threads wait for a change.
  static constexpr uint64_t kAwaited = uint64_t{1} << 63;
  OneCaller caller_;
  OwnedCounter issuedTickets_;
  std::atomic<uint64_t> servedTickets_{0};
  std::atomic<int> waitingForTurns_{0};  ///< threads that wait for servedTickets_
  std::atomic<bool> finalized_{false};
  mutable std::mutex errorMutex_;
  std::string lastError_;
  std::unique_ptr<HostStream> comparisons_;  ///< of calls without an operation; uses the members above
};

}  // namespace seqpar
