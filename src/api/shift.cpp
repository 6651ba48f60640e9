// seqparShift.
#include <algorithm>
#include <deque>
#include <string>
#include <vector>

#include "api/boundary.h"
#include "api/buffers.h"
#include "base/versioned.h"
#include "exchange/backend.h"
#include "seqpar/ring.h"

using namespace seqpar;

namespace {

constexpr const char* kCall = "seqparShift";

void requireRange(const char* field, int value, int least, int most) {
  if (value < least || value > most) {
    fail(seqparInvalidArgument, kCall, ": params->", field, " is ", value, ", expected ", least, " to ", most);
  }
}

/// Checked tensors of one direction; names live as long as the object.
class Side {
 public:
  Side(const char* way, int peer, int tensors, const void* const* buffers, const size_t* bytes,
       const Communicator& comm) {
    if (peer != SEQPAR_NO_PEER) requireRange(concat(way, "Peer").c_str(), peer, 0, comm.size() - 1);
    requireRange(concat(way, "Tensors").c_str(), tensors, 0, SEQPAR_RING_MOST_TENSORS);
    if (peer == SEQPAR_NO_PEER || tensors == 0) return;
    requirePointer(kCall, concat("params->", way, "Buffers").c_str(), buffers);
    requirePointer(kCall, concat("params->", way, "Bytes").c_str(), bytes);
    for (int i = 0; i < tensors; ++i) {
      names_.push_back(concat("params->", way, "Buffers[", i, "]"));
      if (bytes[i] > 0) requirePointer(kCall, names_.back().c_str(), buffers[i]);
      all_.push_back({names_.back().c_str(), buffers[i], bytes[i]});
      requireMemory(kCall, all_.back(), comm);
    }
  }

  const std::vector<Buffer>& buffers() const { return all_; }

  template <typename Byte>
  std::vector<std::span<Byte>> spans() const {
    std::vector<std::span<Byte>> out;
    for (const auto& buffer : all_) out.emplace_back(pointer<Byte>(buffer), buffer.bytes);
    return out;
  }

 private:
  template <typename Byte>
  static Byte* pointer(const Buffer& buffer) {
    // NOLINTNEXTLINE(cppcoreguidelines-pro-type-const-cast): receive buffers were passed as writable memory
    return static_cast<Byte*>(const_cast<void*>(buffer.data));
  }

  std::deque<std::string> names_;
  std::vector<Buffer> all_;
};

void requireSameLengths(const Side& send, const Side& receive) {
  const auto same = [](const Buffer& a, const Buffer& b) { return a.bytes == b.bytes; };
  const auto& out = send.buffers();
  const auto& in = receive.buffers();
  if (!std::equal(out.begin(), out.end(), in.begin(), in.end(), same)) {
    fail(seqparInvalidArgument, kCall,
         ": params->sendBytes and params->receiveBytes differ, expected the same lengths ", "when sending to oneself");
  }
}

}  // namespace

extern "C" {

SEQPAR_API seqparResult_t seqparShift(const seqparShiftParams_t* params, seqparComm_t handle, void* stream) {
  return onComm(kCall, handle, [&](Communicator& comm) {
    const auto given = readVersioned(kCall, "params", params, seqparShiftParams_t SEQPAR_SHIFT_PARAMS_INITIALIZER);
    const Side send("send", given.sendPeer, given.sendTensors, given.sendBuffers, given.sendBytes, comm);
    const Side receive("receive", given.receivePeer, given.receiveTensors, given.receiveBuffers, given.receiveBytes,
                       comm);
    const bool self = given.sendPeer == comm.rank();
    if (self != (given.receivePeer == comm.rank())) {
      fail(seqparInvalidArgument, kCall, ": params->sendPeer is ", given.sendPeer, " and params->receivePeer is ",
           given.receivePeer, " on rank ", comm.rank(), "; expected both or neither to be this rank");
    }
    if (self) requireSameLengths(send, receive);
    const auto& in = receive.buffers();
    for (size_t i = 0; i < in.size(); ++i) {
      for (size_t j = i + 1; j < in.size(); ++j) requireDisjoint(kCall, in[i], in[j], false);
      for (const auto& sent : send.buffers()) requireDisjoint(kCall, sent, in[i], false);
    }
    const auto on = callerStream(kCall, stream, comm);
    const auto out = send.spans<const std::byte>();
    const auto into = receive.spans<std::byte>();
    exchangesOf(comm).shift(comm, kCall, {given.sendPeer, out, given.receivePeer, into}, on);
  });
}

}  // extern "C"
