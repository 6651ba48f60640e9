// The messages of Network: tags, sends, posted receives, and UCX's callbacks.
#include "transport/network.h"

namespace seqpar {
namespace {

// Enough that a stream of messages finds its next receive posted; each may take a whole kMaxMessage.
constexpr size_t kPosted = 8;

// A tag, from above: communicator, kind, source rank, sequence number.
constexpr unsigned kIdShift = 54;
constexpr unsigned kKindShift = 52;
constexpr unsigned kSourceShift = 32;

}  // namespace

uint64_t Network::tag(Kind kind, int source, uint64_t sequence) const {
  return (id_ << kIdShift) | (static_cast<uint64_t>(kind) << kKindShift) |
         (static_cast<uint64_t>(source) << kSourceShift) | (sequence & 0xffffffffU);
}

uint64_t Network::send(int to, const std::byte* data, size_t bytes) {
  const std::lock_guard lock(mutex_);
  Lane& lane = this->lane(to);
  // The hello was this lane's first send, so what it has sent counts the data, this message included.
  startSend(lane, data, bytes, tag(Kind::Data, rank_, lane.sent));
  return lane.sent;
}

void Network::startSend(Lane& lane, const std::byte* data, size_t bytes, uint64_t tag) {
  Send& send = lane.sends.emplace_back(Send{&lane, false});
  ++lane.sent;
  ucp_request_param_t params{};
  params.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  params.cb.send = &Network::onSent;
  params.user_data = &send;
  const ucs_status_ptr_t request = ucp_tag_send_sync_nbx(lane.endpoint, data, bytes, tag, &params);
  if (UCS_PTR_IS_PTR(request)) return;
  settle(send);
  if (UCS_PTR_IS_ERR(request)) noteFailure(lane, UCS_PTR_STATUS(request));
}

void Network::onSent(void* request, ucs_status_t status, void* user) {
  auto& send = *static_cast<Send*>(user);
  const Lane& lane = *send.lane;
  settle(send);
  if (status != UCS_OK) lane.network->noteFailure(lane, status);
  ucp_request_free(request);
}

void Network::settle(Send& send) {
  Lane& lane = *send.lane;
  send.done = true;
  uint64_t completed = lane.completed.load(std::memory_order_relaxed);
  for (; !lane.sends.empty() && lane.sends.front().done; lane.sends.pop_front()) ++completed;
  lane.completed = completed;
}

Network::Receive& Network::next(int from) const {
  Lane& lane = this->lane(from);
  return lane.receives[lane.received % kPosted];
}

bool Network::arrived(int from) {
  Lane& lane = this->lane(from);
  if (lane.receives.empty()) {
    const std::lock_guard lock(mutex_);
    lane.memory = std::make_unique_for_overwrite<Line[]>(kPosted * kMaxMessage / kLine);
    lane.receives = std::vector<Receive>(kPosted);
    for (size_t i = 0; i < kPosted; ++i) {
      lane.receives[i].memory = lane.memory[i * kMaxMessage / kLine].bytes;
      post(lane, lane.receives[i], kMaxMessage, tag(Kind::Data, from, i + 1));
    }
  }
  return next(from).arrived;
}

void Network::release(int from) {
  const std::lock_guard lock(mutex_);
  Lane& lane = this->lane(from);
  Receive& receive = next(from);
  ++lane.received;
  receive.arrived = false;
  receive.request.reset();
  post(lane, receive, kMaxMessage, tag(Kind::Data, from, lane.received + kPosted));
}

void Network::post(Lane& lane, Receive& receive, size_t capacity, uint64_t tag) {
  ucp_request_param_t params{};
  // Always with a callback: UCX does not tell the size of a message that is received at once in another way.
  params.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FLAG_NO_IMM_CMPL;
  params.cb.recv = &Network::onReceived;
  params.user_data = &receive;
  const ucs_status_ptr_t request =
      ucp_tag_recv_nbx(worker_.get(), receive.memory, capacity, tag, ~uint64_t{0}, &params);
  if (UCS_PTR_IS_ERR(request)) {
    noteFailure(lane, UCS_PTR_STATUS(request));
  } else {
    receive.request.reset(request);
  }
}

void Network::onReceived(void*, ucs_status_t status, const ucp_tag_recv_info_t* info, void* user) {
  // A receive that failed stays without its message: the endpoint's error handler tells why.
  if (status != UCS_OK) return;
  auto& receive = *static_cast<Receive*>(user);
  receive.bytes = info->length;
  receive.arrived = true;
}

void Network::cancel(Receive& receive) {
  if (receive.request == nullptr) return;
  ucp_request_cancel(worker_.get(), receive.request.get());
  receive.request.reset();
}

void Network::discardUnread() {
  // UCX warns of messages that nobody took, which is no news after a failure.
  ucp_tag_recv_info_t info{};
  while (const ucp_tag_message_h message = ucp_tag_probe_nb(worker_.get(), 0, 0, 1, &info)) {
    const ucp_request_param_t params{};
    const ucs_status_ptr_t request = ucp_tag_msg_recv_nbx(worker_.get(), nullptr, 0, message, &params);
    if (UCS_PTR_IS_PTR(request)) ucp_request_free(request);
  }
}

void Network::onError(void* user, ucp_ep_h, ucs_status_t status) {
  const Lane& lane = *static_cast<Lane*>(user);
  lane.network->noteFailure(lane, status);
}

void Network::noteFailure(const Lane& lane, ucs_status_t status) {
  // A peer that has said farewell may go.
  if (closing_ || lane.farewell.arrived || !failure_.empty()) return;
  failure_ =
      concat("rank ", rank_, " lost its connection to rank ", lane.rank, " (UCX: ", ucs_status_string(status), ")");
  failed_ = true;
}

void Network::reportFailure() {
  if (!failed_ || !health_.ok()) return;
  std::string failure;
  {
    const std::lock_guard lock(mutex_);
    failure = failure_;
  }
  // Without the mutex, because the failure's hook is foreign code.
  health_.fail(seqparRemoteError, failure);
}

}  // namespace seqpar
