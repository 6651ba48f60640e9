// seqparShift.
#include <algorithm>
#include <array>
#include <memory>
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

/// The names of one direction's arguments in error texts.
struct Names {
  explicit Names(const std::string& way)
      : peer(way + "Peer"),
        tensors(way + "Tensors"),
        buffers("params->" + way + "Buffers"),
        bytes("params->" + way + "Bytes") {
    for (size_t i = 0; i < each.size(); ++i) each[i] = concat(buffers, "[", i, "]");
  }

  std::string peer, tensors, buffers, bytes;
  std::array<std::string, SEQPAR_RING_MOST_TENSORS> each;  ///< of the buffers
};

/// Checked tensors of one direction.
class Side {
 public:
  Side(const Names& names, int peer, int tensors, const void* const* buffers, const size_t* bytes,
       const Communicator& comm) {
    if (peer != SEQPAR_NO_PEER) requireRange(names.peer.c_str(), peer, 0, comm.size() - 1);
    requireRange(names.tensors.c_str(), tensors, 0, SEQPAR_RING_MOST_TENSORS);
    if (peer == SEQPAR_NO_PEER || tensors == 0) return;
    requirePointer(kCall, names.buffers.c_str(), buffers);
    requirePointer(kCall, names.bytes.c_str(), bytes);
    const auto count = static_cast<size_t>(tensors);
    all_.reserve(count);
    for (size_t i = 0; i < count; ++i) {
      const char* const name = names.each[i].c_str();
      if (bytes[i] > 0) requirePointer(kCall, name, buffers[i]);
      all_.push_back({name, buffers[i], bytes[i]});
      requireMemory(kCall, all_.back(), comm);
    }
  }

  const std::vector<Buffer>& buffers() const { return all_; }

  template <typename Byte>
  std::vector<std::span<Byte>> spans() const {
    std::vector<std::span<Byte>> out;
    out.reserve(all_.size());
    for (const auto& buffer : all_) out.emplace_back(pointer<Byte>(buffer), buffer.bytes);
    return out;
  }

 private:
  template <typename Byte>
  static Byte* pointer(const Buffer& buffer) {
    // NOLINTNEXTLINE(cppcoreguidelines-pro-type-const-cast): receive buffers were passed as writable memory
    return static_cast<Byte*>(const_cast<void*>(buffer.data));
  }

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
    // Never destroyed: a program may call while it exits.
    static const auto& sendNames = *std::make_unique<const Names>("send").release();
    static const auto& receiveNames = *std::make_unique<const Names>("receive").release();
    const Side send(sendNames, given.sendPeer, given.sendTensors, given.sendBuffers, given.sendBytes, comm);
    const Side receive(receiveNames, given.receivePeer, given.receiveTensors, given.receiveBuffers, given.receiveBytes,
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
