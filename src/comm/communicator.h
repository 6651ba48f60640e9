// One rank's membership in a group: control plane, mailbox, measured links, and the order of its operations.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "base/health.h"
#include "bootstrap/control.h"
#include "comm/agreement.h"
#include "comm/call_log.h"
#include "comm/config.h"
#include "comm/ordered_control.h"
#include "comm/stream.h"
#include "device/group.h"
#include "plan/link.h"
#include "plan/topology.h"
#include "transport/mailbox.h"

namespace seqpar {

/// The stream that a call was given, of the kind of its communicator. Both null: the calling thread, or the default
/// stream.
struct CallerStream {
  std::shared_ptr<HostStream> host;
  DeviceStream device = nullptr;
};

class Communicator {
 public:
  /// Collective over `oob`.
  Communicator(Allgather& oob, CommConfig config);
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;
  ~Communicator();

  int rank() const { return control_->rank(); }
  int size() const { return control_->size(); }
  const CommConfig& config() const { return config_; }
  const Topology& topology() const { return topology_; }
  const LinkModel& links() const { return links_; }
  /// Of a device communicator, whose links are measured by kernels above this layer.
  void recordLinks(const LinkModel& links) { links_ = links; }
  /// The GPU side; null on a host communicator.
  DeviceGroup* device() const { return device_.get(); }
  /// Host communicators only.
  const Mailbox& mailbox() const { return *mailbox_; }
  const MailboxDescription& transport() const { return transport_; }
  Control& control() { return *control_; }
  const Health& health() const { return health_; }
  CallLog& calls() { return calls_; }

  /// Runs `work` after all earlier operations of this communicator: in the call without a stream, on the stream with
  /// one. An Error inside an operation leaves its messages half sent, so it ends the communicator. `name` is a literal.
  template <typename Work>
  void run(const char* name, HostStream* stream, Work work) {
    auto comparison = takeComparison();
    const uint64_t ticket = issue(name);
    const CallReference record = calls_.operation(name, stream != nullptr);
    if (stream == nullptr) {
      execute(ticket, name, std::cref(work), comparison.get(), record);
    } else {
      stream->enqueue([this, ticket, name, record, work = std::move(work), comparison = std::move(comparison)] {
        execute(ticket, name, std::cref(work), comparison.get(), record);
      });
    }
  }

  /// Records that the thread is in a call which all ranks make with the same `values`. Where config().checkArguments
  /// says so: compares the arguments of the call that the thread is in with the other ranks', without waiting for them
  /// here, as two communicators may be called in different orders by different ranks. On a host, that is the first step
  /// of the operation that the call runs next: a difference is InvalidUsage instead of the operation, and the
  /// communicator stays. On a device it happens beside the work, and ends the communicator.
  void compareNext(const char* call, std::span<const NamedValue> values);
  /// The same for calls that wait for the other ranks anyway: a difference is an InvalidUsage here.
  void compareNow(const char* call, std::span<const NamedValue> values);
  /// To be called at the end of each call: compares what was to be compared with an operation that did not come because
  /// there was nothing to do. A difference ends the communicator.
  void compareAtLast();
  /// Forgets what the calling thread was to compare. For calls that fail.
  static void dropComparison() noexcept;

  /// run() of a device communicator: `launch(DeviceGroup&)` enqueues its work on `stream`, a cudaStream_t. An Error
  /// that it throws after it has launched a part ends the communicator.
  template <typename Launch>
  void enqueue(const char* name, DeviceStream stream, Launch launch) {
    requireUse(name);
    enqueueOnDevice(name, stream, [this, &launch] { launch(*device_); });
  }

  /// Collective: waits for this rank's operations, then for the other ranks to come here too.
  void finalize();
  /// finalize() if that was not done, then takes leave of the other ranks. After a failure: waits for this rank's
  /// operations to give up, and for nobody else.
  void close();
  /// Fails this rank and all others at once. May be called from any thread.
  void abort();

 private:
  void requireUse(const char* name) const;
  uint64_t issue(const char* name);
  void execute(uint64_t ticket, const char* name, const std::function<void(Mailbox&)>& work,
               const Comparison* comparison, CallReference record = {});
  std::shared_ptr<const Comparison> takeComparison();
  void enqueueOnDevice(const char* name, DeviceStream stream, const std::function<void()>& launch);
  void connect();
  void drain();

  Health health_;
  CallLog calls_;
  CommConfig config_;
  std::unique_ptr<Control> control_;
  OrderedControl* ordered_ = nullptr;  ///< control_, if comparisons go there
  Topology topology_;
  MailboxDescription transport_;
  std::unique_ptr<Mailbox> mailbox_;     ///< of a host communicator
  std::unique_ptr<DeviceGroup> device_;  ///< of a device communicator
  LinkModel links_;

  std::atomic<uint64_t> issuedTickets_{0}, servedTickets_{0};
  std::atomic<bool> finalized_{false};
  std::unique_ptr<HostStream> comparisons_;  ///< of calls without an operation; its work uses the above
};

}  // namespace seqpar
