// The custom calls of seqpar.jax. Python registers each call in advance, for each rank of this process
// (seqparJaxDefine): the function of libseqpar and its arguments; the handler fills in the buffers and the stream.
// XLA's threads then run without Python, and the compiled program only contains a call number that is equal in all
// processes.
//
// Compiled at first use against the headers of the installed jaxlib (jax.ffi.include_dir()): their ABI is jaxlib's.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace {

enum class Kind : int64_t { kValue, kBuffer, kBlob, kStream };

// An argument of the C function: a value, the address of a buffer (operands, then results), an address in the blob, or
// the stream. All have the size of a pointer.
struct Slot {
  Kind kind;
  int64_t value;
};

// The offset in the blob where this buffer's address is stored.
struct Patch {
  int64_t offset, buffer;
};

struct Call {
  void* function;
  void* errorText;  // seqparGetLastError; if comm is null, seqparAttnGetLastError, which takes no argument
  void* comm;
  int32_t rank;    // of the device
  void* rankComm;  // its communicator
  void* fail;      // seqparCommFail
  void* group;     // the communicator of rank 0: the same for all ranks
  int32_t ranks;
  std::vector<Slot> slots;
  std::vector<unsigned char> blob;  // structures of arguments
  std::vector<Patch> patches;
};

std::mutex guard;
std::map<std::pair<int64_t, int32_t>, Call>& calls() {
  static std::map<std::pair<int64_t, int32_t>, Call> all;
  return all;
}

// Calls of a device that have started and not ended.
std::map<int32_t, int>& running() {
  static std::map<int32_t, int> all;
  return all;
}

// The order of calls on the ranks of a communicator.
struct Order {
  explicit Order(int32_t ranks) : turns(ranks), started(ranks) {}

  std::vector<std::mutex> turns;  // of each rank: held from the start of a call to its end
  std::vector<int64_t> started;   // by each rank
  std::deque<int64_t> sites;      // of calls that not all ranks have started, from number `first` on
  int64_t first = 0;

  // False if another rank has started a different call at this place of its order.
  bool start(int32_t rank, int64_t site) {
    const int64_t place = started[rank]++ - first;
    if (place == static_cast<int64_t>(sites.size())) sites.push_back(site);
    const bool equal = sites[place] == site;
    while (!sites.empty() && *std::min_element(started.begin(), started.end()) > first) {
      sites.pop_front();
      ++first;
    }
    return equal;
  }
};

std::map<void*, std::shared_ptr<Order>>& orders() {
  static std::map<void*, std::shared_ptr<Order>> all;
  return all;
}

class Running {
 public:
  explicit Running(int32_t device) : device_(device) {}  // with `guard` held and running() incremented
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;
  ~Running() {
    std::lock_guard<std::mutex> lock(guard);
    --running()[device_];
  }

 private:
  int32_t device_;
};

template <size_t>
using Pointer = void*;

template <size_t... I>
int invoke(void* function, void* const* values, std::index_sequence<I...>) {
  return reinterpret_cast<int (*)(Pointer<I>...)>(function)(values[I]...);
}

int invoke(void* function, const std::vector<void*>& values) {
  void* const* v = values.data();
  switch (values.size()) {
    case 3:
      return invoke(function, v, std::make_index_sequence<3>());
    case 4:
      return invoke(function, v, std::make_index_sequence<4>());
    case 5:
      return invoke(function, v, std::make_index_sequence<5>());
    case 6:
      return invoke(function, v, std::make_index_sequence<6>());
    case 7:
      return invoke(function, v, std::make_index_sequence<7>());
    case 8:
      return invoke(function, v, std::make_index_sequence<8>());
    default:
      return -1;
  }
}

// The token is the last operand: the device's index along the axis of shard_map, plus one; 0 in gradients. On GPUs it
// is not read.
std::string wrongMesh(const Call& call, int32_t device, float token) {
  const int64_t index = static_cast<int64_t>(token) - 1;
  if (index < 0 || index == call.rank) return "";
  return "seqpar: device " + std::to_string(device) + " has index " + std::to_string(index) +
         " in the mesh of jax.shard_map, expected " + std::to_string(call.rank) +
         ": its rank in the communicator. Pass both the same mesh";
}

constexpr char kOtherOrder[] =
    "seqpar: devices started independent calls in different orders. Calls inside of jax.checkpoint, scan or a nested "
    "jit are not ordered against calls outside: let one depend on the result of the other";

ffi::Error run(int32_t device, void* stream, bool onHost, const ffi::RemainingArgs& operands,
               const ffi::RemainingRets& results, int64_t key, int64_t site) {
  std::optional<Call> call;  // a copy: the communicator may be closed meanwhile
  std::optional<Running> counted;
  {
    std::lock_guard<std::mutex> lock(guard);
    const auto found = calls().find({key, device});
    if (found != calls().end()) {
      call = found->second;
      ++running()[device];
      counted.emplace(device);
    }
  }
  if (!call) {
    return ffi::Error(ffi::ErrorCode::kFailedPrecondition, "seqpar: device " + std::to_string(device) +
                                                               " has no call " + std::to_string(key) +
                                                               ": its communicator is closed, or of other devices");
  }
  std::vector<void*> buffers;
  for (size_t i = 0; i < operands.size(); ++i) {
    const auto buffer = operands.get<ffi::AnyBuffer>(i);
    if (!buffer.has_value()) return buffer.error();
    buffers.push_back(buffer->untyped_data());
  }
  for (size_t i = 0; i < results.size(); ++i) {
    auto buffer = results.get<ffi::AnyBuffer>(i);
    if (!buffer.has_value()) return buffer.error();
    buffers.push_back((*buffer)->untyped_data());
  }
  std::shared_ptr<Order> order;
  std::unique_lock<std::mutex> turn;
  if (onHost) {
    std::string text = wrongMesh(*call, device, *static_cast<const float*>(buffers[operands.size() - 1]));
    if (text.empty()) {
      {
        std::lock_guard<std::mutex> lock(guard);
        std::shared_ptr<Order>& known = orders()[call->group];
        if (!known) known = std::make_shared<Order>(call->ranks);
        order = known;
      }
      turn = std::unique_lock<std::mutex>(order->turns[call->rank]);
      std::lock_guard<std::mutex> lock(guard);
      if (!order->start(call->rank, site)) text = kOtherOrder;
    }
    if (!text.empty()) {
      reinterpret_cast<int (*)(void*, const char*)>(call->fail)(call->rankComm, text.c_str());
      return ffi::Error(ffi::ErrorCode::kFailedPrecondition, text);
    }
  }
  std::vector<unsigned char> blob = call->blob;
  for (const Patch& patch : call->patches) std::memcpy(&blob[patch.offset], &buffers[patch.buffer], sizeof(void*));
  std::vector<void*> values;
  for (const Slot& slot : call->slots) {
    switch (slot.kind) {
      case Kind::kValue:
        values.push_back(reinterpret_cast<void*>(slot.value));
        break;
      case Kind::kBuffer:
        values.push_back(buffers[slot.value]);
        break;
      case Kind::kBlob:
        values.push_back(&blob[slot.value]);
        break;
      case Kind::kStream:
        values.push_back(stream);
        break;
    }
  }
  const int result = invoke(call->function, values);
  if (result == 0) return ffi::Error::Success();
  const auto ofComm = reinterpret_cast<const char* (*)(void*)>(call->errorText);
  const char* text = call->comm ? ofComm(call->comm) : reinterpret_cast<const char* (*)()>(call->errorText)();
  if (call->comm && !*text) text = ofComm(nullptr);  // of this thread
  return ffi::Error(ffi::ErrorCode::kInternal, text && *text ? text : "seqpar: error " + std::to_string(result));
}

ffi::Error runOnHost(int32_t device, ffi::RemainingArgs operands, ffi::RemainingRets results, int64_t key,
                     int64_t site) {
  return run(device, nullptr, true, operands, results, key, site);  // to completion in the call
}

ffi::Error runOnGpu(int32_t device, void* stream, ffi::RemainingArgs operands, ffi::RemainingRets results, int64_t key,
                    int64_t site) {
  return run(device, stream, false, operands, results, key, site);
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    seqparJaxHost, runOnHost,
    ffi::Ffi::Bind().Ctx<ffi::DeviceOrdinal>().RemainingArgs().RemainingRets().Attr<int64_t>("key").Attr<int64_t>(
        "site"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(seqparJaxGpu, runOnGpu,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::DeviceOrdinal>()
                                  .Ctx<ffi::PlatformStream<void*>>()
                                  .RemainingArgs()
                                  .RemainingRets()
                                  .Attr<int64_t>("key")
                                  .Attr<int64_t>("site"),
                              {ffi::Traits::kCmdBufferCompatible});

// Defines call `key` for the rank of `device`.
extern "C" void seqparJaxDefine(int64_t key, int32_t device, int32_t rank, int32_t ranks, void* group, void* rankComm,
                                void* fail, void* function, void* errorText, void* comm, const Slot* slots,
                                int64_t slotCount, const unsigned char* blob, int64_t blobBytes, const Patch* patches,
                                int64_t patchCount) {
  std::lock_guard<std::mutex> lock(guard);
  calls()[{key, device}] = {function,
                            errorText,
                            comm,
                            rank,
                            rankComm,
                            fail,
                            group,
                            ranks,
                            {slots, slots + slotCount},
                            {blob, blob + blobBytes},
                            {patches, patches + patchCount}};
}

// The number of calls of the device that have started and not ended.
extern "C" int seqparJaxRunning(int32_t device) {
  std::lock_guard<std::mutex> lock(guard);
  return running()[device];
}

extern "C" void seqparJaxForget(int64_t key, int32_t device) {
  std::lock_guard<std::mutex> lock(guard);
  const auto found = calls().find({key, device});
  if (found == calls().end()) return;
  orders().erase(found->second.group);
  calls().erase(found);
}
