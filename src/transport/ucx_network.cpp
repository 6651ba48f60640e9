// Connecting, progress and closing; see ucx_network_messages.cpp for the messages.
#include "transport/ucx_network.h"

#include <poll.h>
#include <sched.h>

#include <algorithm>
#include <new>
#include <random>
#include <span>
#include <string>
#include <utility>

#include "base/log.h"
#include "base/memory.h"
#include "base/thread.h"
#include "bootstrap/agree.h"

namespace seqpar {
namespace {

constexpr std::chrono::milliseconds kByeTime{2000};
// The thread's sleep is bounded only so that a lost event cannot stop it forever.
constexpr int kThreadNapMs = 1000;

/// Sleeps until the worker has work; returns at once unless it is armed.
void sleepUntilEvent(bool armed, int descriptor, int milliseconds) {
  // Pending work may be for UCX's own thread, which under real-time scheduling only runs if others yield.
  sched_yield();
  if (!armed) return;
  pollfd entry{descriptor, POLLIN, 0};
  ::poll(&entry, 1, milliseconds);
}

}  // namespace

std::unique_ptr<UcxNetwork> UcxNetwork::connect(Allgather& control, const std::vector<bool>& peers, Health& health,
                                                std::chrono::milliseconds timeout) {
  std::unique_ptr<UcxNetwork> network;
  std::vector<std::byte> address;
  together(control, [&] {
    if (std::find(peers.begin(), peers.end(), true) == peers.end()) return;
    network = std::make_unique<UcxNetwork>(control.rank(), health);
    network->open(peers);
    address = ucxAddress(network->worker_.get());
  });
  const auto addresses = gatherParts(control, address);
  std::vector<uint64_t> ids(static_cast<size_t>(control.size()));
  control.gatherValues(uint64_t{std::random_device{}()}, std::span(ids));
  together(control, [&] {
    if (network == nullptr) return;
    network->id_ = ids[0];
    // Only to higher ranks, which connect when they are greeted: UCX 1.13 ends a process if the other one dies while
    // both connect to each other.
    for (const auto& queue : network->queues_) {
      if (queue != nullptr && queue->rank > control.rank()) {
        network->connectTo(*queue, addresses[static_cast<size_t>(queue->rank)]);
      }
    }
  });
  // Only after all have these endpoints, since a greeting waits for its answer.
  together(control, [&] {
    if (network == nullptr) return;
    try {
      network->thread_ = startThread("the network", [raw = network.get()] { raw->serve(); });
      network->greet(addresses, timeout);
    } catch (const std::exception& error) {
      // The others wait for this rank's greeting.
      health.fail(seqparRemoteError, FixedText{"rank ", std::to_string(control.rank()), " cannot greet through ",
                                               network->transport(), ": ", error.what()});
      throw;
    }
  });
  return network;
}

UcxNetwork::UcxNetwork(int rank, Health& health) : rank_(rank), health_(health) {}

void UcxNetwork::open(const std::vector<bool>& peers) {
  // No keepalive, neither UCX's nor the kernel's: the control plane detects silence, by the communicator's timeout, and
  // a process that dies closes its connections anyway. Shared-memory transports stay disabled (UCX enables them only on
  // request when error handling is on): without UCX's probes they do not detect death.
  // Nonblocking connects: if a connection is reset in the call that establishes it, UCX 1.13 ends the process.
  context_ = makeUcxContext(UCP_FEATURE_TAG | UCP_FEATURE_WAKEUP,
                            {{"KEEPALIVE_INTERVAL", "inf"}, {"KEEPIDLE", "inf"}, {"CONN_NB", "y"}});
  worker_ = makeUcxWorker(context_.get(), UCS_THREAD_MODE_SERIALIZED);
  checkUcx(ucx().workerGetEfd(worker_.get(), &descriptor_), "ucp_worker_get_efd");
  queues_.resize(peers.size());
  for (size_t rank = 0; rank < peers.size(); ++rank) {
    if (!peers[rank]) continue;
    queues_[rank] = std::make_unique<Queue>();
    queues_[rank]->network = this;
    queues_[rank]->rank = static_cast<int>(rank);
  }
}

void UcxNetwork::connectTo(Queue& queue, const std::vector<std::byte>& address) {
  ucp_ep_params_t params{};
  params.field_mask =
      UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(address.data());
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler.cb = &UcxNetwork::onError;
  params.err_handler.arg = &queue;
  checkUcx(ucx().epCreate(worker_.get(), &params, &queue.endpoint), concat("ucp_ep_create(to rank ", queue.rank, ")"));
}

void UcxNetwork::greet(const std::vector<std::vector<std::byte>>& addresses, std::chrono::milliseconds timeout) {
  {
    const std::lock_guard lock(mutex_);
    for (const auto& queue : queues_) {
      if (queue == nullptr) continue;
      for (const auto& [receive, kind] :
           {std::pair{&queue->hello, Kind::Hello}, {&queue->ready, Kind::Ready}, {&queue->bye, Kind::Bye}}) {
        post(*queue, *receive, 0, tag(kind, queue->rank, 0));
      }
      if (queue->endpoint != nullptr) startSend(*queue, nullptr, 0, tag(Kind::Hello, rank_, 0));
    }
  }
  const auto answer = [&] {
    const std::lock_guard lock(mutex_);
    for (const auto& queue : queues_) {
      if (queue == nullptr || queue->endpoint != nullptr || !queue->hello.arrived) continue;
      connectTo(*queue, addresses[static_cast<size_t>(queue->rank)]);
      startSend(*queue, nullptr, 0, tag(Kind::Hello, rank_, 0));
    }
  };
  const Deadline deadline(timeout);
  const auto await = [&](Receive Queue::*receive) {
    for (const auto& queue : queues_) {
      if (queue == nullptr) continue;
      while (queue->endpoint == nullptr || !((*queue).*receive).arrived || queue->completed < queue->sent) {
        answer();
        health_.check();
        if (deadline.passed()) {
          fail(seqparRemoteError, "no answer from rank ", queue->rank, " through ", transport(), " in ",
               timeout.count(), " ms");
        }
        if (!progress()) doze(std::chrono::milliseconds(1));
      }
    }
  };
  await(&Queue::hello);
  {
    // Now UCX exchanges the endpoints' ids, over connections that exist.
    const std::lock_guard lock(mutex_);
    for (const auto& queue : queues_) {
      if (queue != nullptr) startSend(*queue, nullptr, 0, tag(Kind::Ready, rank_, 0));
    }
  }
  await(&Queue::ready);
  greeted_ = true;
}

UcxNetwork::~UcxNetwork() {
  if (worker_ == nullptr) return;
  resume();
  if (thread_.joinable() && health_.ok()) bye();
  stop();
  const auto connects = [](const auto& queue) { return queue != nullptr && queue->endpoint != nullptr; };
  if (!greeted_ && std::any_of(queues_.begin(), queues_.end(), connects)) {
    try {
      abandon();
      return;
    } catch (const std::bad_alloc&) {
      log(LogLevel::Info, "no memory to keep a UCX worker with unfinished connections");
    }
  }
  const std::lock_guard lock(mutex_);
  closing_ = true;
  closeEndpoints();
  drain();
  for (const auto& queue : queues_) {
    if (queue == nullptr) continue;
    cancel(queue->hello);
    cancel(queue->ready);
    cancel(queue->bye);
    for (Receive& receive : queue->receives) cancel(receive);
  }
  discardUnread();
  // Reset here, because UCX still invokes callbacks for requests that it cancels.
  worker_.reset();
}

/// Leaves a worker whose connections are not all established to the end of the process, without progress: UCX 1.13 ends
/// the process if a reply to a request for a connection is pending in a worker that is destroyed, or whose peer died.
void UcxNetwork::abandon() {
  struct Abandoned {
    UcxContext context;
    UcxWorker worker;
    std::vector<std::unique_ptr<Queue>> queues;
  };
  static auto& mutex = *new std::mutex;
  static auto& all = *new std::vector<Abandoned>;
  const std::lock_guard lock(mutex);
  all.push_back({std::move(context_), std::move(worker_), std::move(queues_)});
  log(LogLevel::Info, "a UCX worker with unfinished connections is kept until the process ends");
}

void UcxNetwork::closeEndpoints() {
  for (const auto& queue : queues_) {
    if (queue == nullptr || queue->endpoint == nullptr) continue;
    ucp_request_param_t params{};
    params.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
    params.flags = UCP_EP_CLOSE_FLAG_FORCE;
    const ucs_status_ptr_t closing = ucx().epCloseNbx(queue->endpoint, &params);
    if (!UCS_PTR_IS_PTR(closing)) continue;
    const Deadline deadline(kByeTime);
    while (ucx().requestCheckStatus(closing) == UCS_INPROGRESS && !deadline.passed()) {
      ucx().workerProgress(worker_.get());
    }
    ucx().requestFree(closing);
  }
}

void UcxNetwork::bye() {
  try {
    {
      const std::lock_guard lock(mutex_);
      for (const auto& queue : queues_) {
        if (queue != nullptr) startSend(*queue, nullptr, 0, tag(Kind::Bye, rank_, 0));
      }
    }
    const Deadline deadline(kByeTime);
    for (const auto& queue : queues_) {
      // A peer that has sent its own bye may be gone, so it need not acknowledge this one.
      while (queue != nullptr && queue->completed + (queue->bye.arrived ? 1 : 0) < queue->sent && health_.ok() &&
             !deadline.passed()) {
        if (!progress()) doze(std::chrono::milliseconds(1));
      }
    }
  } catch (const std::exception& error) {
    log(LogLevel::Info, "no bye: ", error.what());
  }
}

void UcxNetwork::stop() noexcept {
  if (!thread_.joinable()) return;
  stopping_ = true;
  {
    const std::lock_guard lock(restMutex_);
    restChanged_.notify_all();
  }
  ucx().workerSignal(worker_.get());
  thread_.join();
}

void UcxNetwork::rest() {
  resting_ = true;
  if (!parked_) return;
  const std::lock_guard lock(restMutex_);
  restChanged_.notify_all();
}

void UcxNetwork::serve() {
  while (true) {
    {
      std::unique_lock lock(restMutex_);
      parked_ = true;
      restChanged_.wait(lock, [this] { return resting_ || stopping_; });
      parked_ = false;
    }
    if (stopping_) return;
    bool armed = false;
    {
      const std::lock_guard lock(mutex_);
      drain();
      armed = arm();
    }
    reportFailure();
    if (!stopping_) sleepUntilEvent(armed, descriptor_, kThreadNapMs);
  }
}

bool UcxNetwork::progress() {
  bool moved = false;
  {
    const std::lock_guard lock(mutex_);
    moved = ucx().workerProgress(worker_.get()) != 0;
  }
  reportFailure();
  return moved;
}

void UcxNetwork::doze(std::chrono::milliseconds most) {
  bool armed = false;
  {
    const std::lock_guard lock(mutex_);
    if (ucx().workerProgress(worker_.get()) != 0) return;
    armed = arm();
  }
  reportFailure();
  sleepUntilEvent(armed, descriptor_, static_cast<int>(most.count()));
}

void UcxNetwork::drain() {
  while (ucx().workerProgress(worker_.get()) != 0) {
  }
}

bool UcxNetwork::arm() {
  return ucx().workerArm(worker_.get()) == UCS_OK;
}

std::string UcxNetwork::transport() const {
  const std::lock_guard lock(mutex_);
  std::string names;
  for (const auto& queue : queues_) {
    if (queue == nullptr || queue->endpoint == nullptr) continue;
    const std::string name = transportsOf(queue->endpoint);
    if (names.find(name) == std::string::npos) names += (names.empty() ? "" : ", ") + name;
  }
  return concat("UCX ", ucxVersion(), names.empty() ? "" : " ", names);
}

}  // namespace seqpar
