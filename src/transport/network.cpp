// Connecting, moving and parting; see network_messages.cpp for the messages themselves.
#include "transport/network.h"

#include <poll.h>
#include <sched.h>

#include <algorithm>
#include <random>
#include <span>

#include "base/log.h"
#include "transport/agree.h"

namespace seqpar {
namespace {

constexpr std::chrono::milliseconds kFarewellTime{2000};
// The thread's sleep has an end only so that a lost event cannot stop it for ever.
constexpr int kThreadNapMs = 1000;

/// Sleeps until the worker has something to do; not at all unless it is armed.
void sleepUntilEvent(bool armed, int descriptor, int milliseconds) {
  // What is pending may be for UCX's own thread, which under real-time scheduling runs only if others let it.
  sched_yield();
  if (!armed) return;
  pollfd entry{descriptor, POLLIN, 0};
  ::poll(&entry, 1, milliseconds);
}

}  // namespace

std::unique_ptr<Network> Network::connect(Allgather& control, const std::vector<bool>& peers, Health& health,
                                          std::chrono::milliseconds timeout) {
  std::unique_ptr<Network> network;
  std::vector<std::byte> address;
  together(control, [&] {
    if (std::find(peers.begin(), peers.end(), true) == peers.end()) return;
    network = std::make_unique<Network>(control.rank(), health);
    network->open(peers);
    address = ucxAddress(network->worker_.get());
  });
  const auto addresses = gatherPieces(control, address);
  std::vector<uint64_t> ids(static_cast<size_t>(control.size()));
  control.gatherValues(uint64_t{std::random_device{}()}, std::span(ids));
  together(control, [&] {
    if (network == nullptr) return;
    network->id_ = ids[0];
    for (const auto& lane : network->lanes_) {
      if (lane != nullptr) network->connectTo(*lane, addresses[static_cast<size_t>(lane->rank)]);
    }
  });
  // Only once all have their endpoints, since a greeting waits for its answer.
  together(control, [&] {
    if (network == nullptr) return;
    network->thread_ = std::thread([raw = network.get()] { raw->serve(); });
    network->greet(timeout);
  });
  return network;
}

Network::Network(int rank, Health& health) : rank_(rank), health_(health) {}

void Network::open(const std::vector<bool>& peers) {
  // No keepalive, neither UCX's nor the kernel's: silence is for the control plane to judge, by the communicator's
  // timeout, and a process that dies closes its connections anyway. Transports through memory stay out (as they do
  // unless told to handle errors): without UCX's probes they notice no death.
  context_ = makeUcxContext(UCP_FEATURE_TAG | UCP_FEATURE_WAKEUP, {{"KEEPALIVE_INTERVAL", "inf"}, {"KEEPIDLE", "inf"}});
  worker_ = makeUcxWorker(context_.get(), UCS_THREAD_MODE_SERIALIZED);
  checkUcx(ucp_worker_get_efd(worker_.get(), &descriptor_), "ucp_worker_get_efd");
  lanes_.resize(peers.size());
  for (size_t rank = 0; rank < peers.size(); ++rank) {
    if (!peers[rank]) continue;
    lanes_[rank] = std::make_unique<Lane>();
    lanes_[rank]->network = this;
    lanes_[rank]->rank = static_cast<int>(rank);
  }
}

void Network::connectTo(Lane& lane, const std::vector<std::byte>& address) {
  ucp_ep_params_t params{};
  params.field_mask =
      UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(address.data());
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler.cb = &Network::onError;
  params.err_handler.arg = &lane;
  checkUcx(ucp_ep_create(worker_.get(), &params, &lane.endpoint), concat("ucp_ep_create(to rank ", lane.rank, ")"));
}

void Network::greet(std::chrono::milliseconds timeout) {
  {
    const std::lock_guard lock(mutex_);
    for (const auto& lane : lanes_) {
      if (lane == nullptr) continue;
      for (const auto& [receive, kind] : {std::pair{&lane->hello, Kind::Hello}, {&lane->farewell, Kind::Farewell}}) {
        post(*lane, *receive, 0, tag(kind, lane->rank, 0));
      }
      startSend(*lane, nullptr, 0, tag(Kind::Hello, rank_, 0));
    }
  }
  const Deadline deadline(timeout);
  for (const auto& lane : lanes_) {
    if (lane == nullptr) continue;
    while (!lane->hello.arrived || lane->completed < lane->sent) {
      health_.check();
      if (deadline.passed()) {
        fail(seqparRemoteError, "no answer from rank ", lane->rank, " through ", transport(), " in ", timeout.count(),
             " ms");
      }
      if (!progress()) doze(std::chrono::milliseconds(1));
    }
  }
}

Network::~Network() {
  if (worker_ == nullptr) return;
  resume();
  if (thread_.joinable() && health_.ok()) farewell();
  stop();
  const std::lock_guard lock(mutex_);
  closing_ = true;
  closeEndpoints();
  drain();
  for (const auto& lane : lanes_) {
    if (lane == nullptr) continue;
    cancel(lane->hello);
    cancel(lane->farewell);
    for (Receive& receive : lane->receives) cancel(receive);
  }
  discardUnread();
  // Here, because UCX still calls back about what it gives up.
  worker_.reset();
}

void Network::closeEndpoints() {
  for (const auto& lane : lanes_) {
    if (lane == nullptr || lane->endpoint == nullptr) continue;
    ucp_request_param_t params{};
    params.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
    params.flags = UCP_EP_CLOSE_FLAG_FORCE;
    const ucs_status_ptr_t closing = ucp_ep_close_nbx(lane->endpoint, &params);
    if (!UCS_PTR_IS_PTR(closing)) continue;
    const Deadline deadline(kFarewellTime);
    while (ucp_request_check_status(closing) == UCS_INPROGRESS && !deadline.passed()) {
      ucp_worker_progress(worker_.get());
    }
    ucp_request_free(closing);
  }
}

void Network::farewell() {
  try {
    {
      const std::lock_guard lock(mutex_);
      for (const auto& lane : lanes_) {
        if (lane != nullptr) startSend(*lane, nullptr, 0, tag(Kind::Farewell, rank_, 0));
      }
    }
    const Deadline deadline(kFarewellTime);
    for (const auto& lane : lanes_) {
      // The farewell itself need not have been acknowledged by a peer that has said its own: it may be gone.
      while (lane != nullptr && lane->completed + (lane->farewell.arrived ? 1 : 0) < lane->sent && health_.ok() &&
             !deadline.passed()) {
        if (!progress()) doze(std::chrono::milliseconds(1));
      }
    }
  } catch (const std::exception& error) {
    log(LogLevel::Info, "no farewell: ", error.what());
  }
}

void Network::stop() noexcept {
  if (!thread_.joinable()) return;
  stopping_ = true;
  {
    const std::lock_guard lock(restMutex_);
    restChanged_.notify_all();
  }
  ucp_worker_signal(worker_.get());
  thread_.join();
}

void Network::rest() {
  resting_ = true;
  if (!parked_) return;
  const std::lock_guard lock(restMutex_);
  restChanged_.notify_all();
}

void Network::serve() {
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

bool Network::progress() {
  bool moved = false;
  {
    const std::lock_guard lock(mutex_);
    moved = ucp_worker_progress(worker_.get()) != 0;
  }
  reportFailure();
  return moved;
}

void Network::doze(std::chrono::milliseconds most) {
  bool armed = false;
  {
    const std::lock_guard lock(mutex_);
    if (ucp_worker_progress(worker_.get()) != 0) return;
    armed = arm();
  }
  reportFailure();
  sleepUntilEvent(armed, descriptor_, static_cast<int>(most.count()));
}

void Network::drain() {
  while (ucp_worker_progress(worker_.get()) != 0) {
  }
}

bool Network::arm() {
  return ucp_worker_arm(worker_.get()) == UCS_OK;
}

std::string Network::transport() const {
  const std::lock_guard lock(mutex_);
  std::string names;
  for (const auto& lane : lanes_) {
    if (lane == nullptr) continue;
    const std::string name = transportsOf(lane->endpoint);
    if (names.find(name) == std::string::npos) names += (names.empty() ? "" : ", ") + name;
  }
  return concat("UCX ", ucxVersion(), names.empty() ? "" : " ", names);
}

}  // namespace seqpar
