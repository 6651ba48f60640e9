// The messages of UcxNetwork: tags, sends, posted receives, and UCX's callbacks.
#include "transport/ucx_network.h"

#include "base/memory.h"

namespace seqpar {
namespace {

// Enough posted receives for a stream of messages; each may need a whole kMaxMessage.
constexpr size_t kPosted = 8;
/// The largest message with its mark, in whole cache lines.
constexpr size_t kCapacity = kMaxMessage + kCacheLine;

// A tag, from the highest bits: communicator, kind, source rank, sequence number.
constexpr unsigned kIdShift = 54;
constexpr unsigned kKindShift = 52;
constexpr unsigned kSourceShift = 32;

}  // namespace

uint64_t UcxNetwork::tag(Kind kind, int source, uint64_t sequence) const {
  return (id_ << kIdShift) | (static_cast<uint64_t>(kind) << kKindShift) |
         (static_cast<uint64_t>(source) << kSourceShift) | (sequence & 0xffffffffU);
}

uint64_t UcxNetwork::send(int to, const std::byte* data, size_t bytes) {
  const std::lock_guard lock(mutex_);
  Queue& queue = this->queue(to);
  // Hello and ready were the first sends of this queue, so the data messages count from 1.
  startSend(queue, data, bytes, tag(Kind::Data, rank_, queue.sent - 1));
  return queue.sent;
}

void UcxNetwork::startSend(Queue& queue, const std::byte* data, size_t bytes, uint64_t tag) {
  Send& send = queue.sends.emplace_back(Send{&queue, false});
  ++queue.sent;
  ucp_request_param_t params{};
  params.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  params.cb.send = &UcxNetwork::onSent;
  params.user_data = &send;
  // A greeting is not synchronous: UCX would exchange the endpoints' ids before the connection is established.
  const bool greets = queue.sent == 1;
  const ucs_status_ptr_t request = greets ? ucx().tagSendNbx(queue.endpoint, data, bytes, tag, &params)
                                          : ucx().tagSendSyncNbx(queue.endpoint, data, bytes, tag, &params);
  if (UCS_PTR_IS_PTR(request)) return;
  completeSend(send);
  if (UCS_PTR_IS_ERR(request)) noteFailure(queue, UCS_PTR_STATUS(request));
}

void UcxNetwork::onSent(void* request, ucs_status_t status, void* user) {
  auto& send = *static_cast<Send*>(user);
  const Queue& queue = *send.queue;
  completeSend(send);
  if (status != UCS_OK) queue.network->noteFailure(queue, status);
  ucx().requestFree(request);
}

void UcxNetwork::completeSend(Send& send) {
  Queue& queue = *send.queue;
  send.done = true;
  uint64_t completed = queue.completed.load(std::memory_order_relaxed);
  for (; !queue.sends.empty() && queue.sends.front().done; queue.sends.pop_front()) ++completed;
  queue.completed = completed;
}

UcxNetwork::Receive& UcxNetwork::next(int from) const {
  Queue& queue = this->queue(from);
  return queue.receives[queue.received % kPosted];
}

bool UcxNetwork::arrived(int from) {
  Queue& queue = this->queue(from);
  if (queue.receives.empty()) {
    const std::lock_guard lock(mutex_);
    queue.memory = allocateFor("messages of a rank", kPosted * kCapacity, [] {
      return std::make_unique_for_overwrite<CacheLine[]>(kPosted * kCapacity / kCacheLine);
    });
    queue.receives = std::vector<Receive>(kPosted);
    for (size_t i = 0; i < kPosted; ++i) {
      queue.receives[i].memory = queue.memory[i * kCapacity / kCacheLine].bytes;
      post(queue, queue.receives[i], kCapacity, tag(Kind::Data, from, i + 1));
    }
  }
  return next(from).arrived;
}

void UcxNetwork::release(int from) {
  const std::lock_guard lock(mutex_);
  Queue& queue = this->queue(from);
  Receive& receive = next(from);
  ++queue.received;
  receive.arrived = false;
  receive.request.reset();
  post(queue, receive, kCapacity, tag(Kind::Data, from, queue.received + kPosted));
}

void UcxNetwork::post(Queue& queue, Receive& receive, size_t capacity, uint64_t tag) {
  ucp_request_param_t params{};
  // Always with a callback: UCX has no other way to report the size of a message that is received immediately.
  params.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FLAG_NO_IMM_CMPL;
  params.cb.recv = &UcxNetwork::onReceived;
  params.user_data = &receive;
  const ucs_status_ptr_t request =
      ucx().tagRecvNbx(worker_.get(), receive.memory, capacity, tag, ~uint64_t{0}, &params);
  if (UCS_PTR_IS_ERR(request)) {
    noteFailure(queue, UCS_PTR_STATUS(request));
  } else {
    receive.request.reset(request);
  }
}

void UcxNetwork::onReceived(void*, ucs_status_t status, const ucp_tag_recv_info_t* info, void* user) {
  // A failed receive never gets its message: the endpoint's error handler reports the reason.
  if (status != UCS_OK) return;
  auto& receive = *static_cast<Receive*>(user);
  receive.bytes = info->length;
  receive.arrived = true;
}

void UcxNetwork::cancel(Receive& receive) {
  if (receive.request == nullptr) return;
  ucx().requestCancel(worker_.get(), receive.request.get());
  receive.request.reset();
}

void UcxNetwork::discardUnread() {
  // UCX warns of messages that were never received, which is expected after a failure.
  ucp_tag_recv_info_t info{};
  while (const ucp_tag_message_h message = ucx().tagProbeNb(worker_.get(), 0, 0, 1, &info)) {
    const ucp_request_param_t params{};
    const ucs_status_ptr_t request = ucx().tagMsgRecvNbx(worker_.get(), nullptr, 0, message, &params);
    if (UCS_PTR_IS_PTR(request)) ucx().requestFree(request);
  }
}

void UcxNetwork::onError(void* user, ucp_ep_h, ucs_status_t status) {
  const Queue& queue = *static_cast<Queue*>(user);
  queue.network->noteFailure(queue, status);
}

void UcxNetwork::noteFailure(const Queue& queue, ucs_status_t status) {
  // A peer that has sent bye may disconnect.
  if (closing_ || queue.bye.arrived || !failure_.empty()) return;
  failure_ =
      concat("rank ", rank_, " lost its connection to rank ", queue.rank, " (UCX: ", ucx().statusString(status), ")");
  failed_ = true;
}

void UcxNetwork::reportFailure() {
  if (!failed_ || !health_.ok()) return;
  // The peer may have left because of a third rank, which the control plane is about to name.
  health_.awaitFailure();
  std::string failure;
  {
    const std::lock_guard lock(mutex_);
    failure = failure_;
  }
  // Without the mutex, because the failure's hook is foreign code.
  health_.fail(seqparRemoteError, failure);
}

}  // namespace seqpar
