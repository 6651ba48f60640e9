// seqparSendRecv.
#include <span>

#include "api/boundary.h"
#include "api/buffers.h"
#include "exchange/backend.h"

using namespace seqpar;

namespace {

constexpr const char* kCall = "seqparSendRecv";

void requirePeer(const char* argument, int peer, int ranks) {
  if (peer != SEQPAR_NO_PEER && (peer < 0 || peer >= ranks)) {
    fail(seqparInvalidArgument, kCall, ": ", argument, " is ", peer, ", expected 0 to ", ranks - 1,
         " or SEQPAR_NO_PEER");
  }
}

}  // namespace

extern "C" {

SEQPAR_API seqparResult_t seqparSendRecv(const void* sendBuffer, size_t sendBytes, int sendPeer, void* receiveBuffer,
                                         size_t receiveBytes, int receivePeer, seqparComm_t handle, void* stream) {
  return onComm(kCall, handle, [&](Communicator& comm) {
    requirePeer("sendPeer", sendPeer, comm.size());
    requirePeer("receivePeer", receivePeer, comm.size());
    const bool sends = sendPeer != SEQPAR_NO_PEER;
    const bool receives = receivePeer != SEQPAR_NO_PEER;
    const bool self = sendPeer == comm.rank();
    if (self != (receivePeer == comm.rank())) {
      fail(seqparInvalidArgument, kCall, ": sendPeer is ", sendPeer, " and receivePeer is ", receivePeer, " on rank ",
           comm.rank(), "; expected both or neither to be this rank");
    }
    if (self && sendBytes != receiveBytes) {
      fail(seqparInvalidArgument, kCall, ": sendBytes is ", sendBytes, " and receiveBytes is ", receiveBytes,
           "; expected equal numbers when sending to oneself");
    }
    const Buffer send{"sendBuffer", sendBuffer, sends ? sendBytes : 0};
    const Buffer receive{"receiveBuffer", receiveBuffer, receives ? receiveBytes : 0};
    if (send.bytes > 0) requirePointer(kCall, send.name, send.data);
    if (receive.bytes > 0) requirePointer(kCall, receive.name, receive.data);
    requireMemory(kCall, send, comm);
    requireMemory(kCall, receive, comm);
    requireDisjoint(kCall, send, receive, false);
    const auto on = callerStream(kCall, stream, comm);
    if (!sends && !receives) return;
    const std::span from(static_cast<const std::byte*>(sendBuffer), send.bytes);
    const std::span into(static_cast<std::byte*>(receiveBuffer), receive.bytes);
    const Flow flow{sendPeer, std::span(&from, 1), receivePeer, std::span(&into, 1)};
    exchangesOf(comm).shift(comm, kCall, flow, on);
  });
}

}  // extern "C"
