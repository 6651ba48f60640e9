// The custom calls of seqpar.jax. Python registers each call in advance, for each rank of this process
// (seqparJaxDefine): the function of libseqpar and its arguments; the handler fills in the buffers and the stream.
// XLA's threads then run without Python, and the compiled program only contains a call number that is equal in all
// processes.
//
// XLA orders calls of a CPU program by their operands only, so devices reach independent calls in different orders. A
// call on hosts therefore returns a future, and the ranks of a communicator run their calls in one order (order.h).
//
// Compiled at first use against the headers of the installed jaxlib (jax.ffi.include_dir()): their ABI is jaxlib's.

#include <atomic>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "order.h"
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
  int64_t timeout;  // of Order, ms
  std::vector<Slot> slots;
  std::vector<unsigned char> blob;  // structures of arguments
  std::vector<Patch> patches;
};

// Objects that threads may use at exit are never destroyed.
std::mutex& guard = *new std::mutex;
std::map<std::pair<int64_t, int32_t>, Call>& calls = *new std::map<std::pair<int64_t, int32_t>, Call>;
std::map<int32_t, int>& running = *new std::map<int32_t, int>;  // calls of a device that have arrived and not ended

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

// A call with its buffers, until it has run.
class Arrival final : public seqpar::jax::OrderedCall {
 public:
  Arrival(int32_t device, int64_t key) : device_(device) {
    std::lock_guard<std::mutex> lock(guard);
    const auto found = calls.find({key, device});
    if (found == calls.end()) {
      error_ = "seqpar: device " + std::to_string(device) + " has no call " + std::to_string(key) +
               ": its communicator is closed, or of other devices";
      return;
    }
    call_ = found->second;  // a copy: the communicator may be closed meanwhile
    ++running[device];
    counted_ = true;
  }
  Arrival(const Arrival&) = delete;
  Arrival& operator=(const Arrival&) = delete;
  ~Arrival() override { leave(); }

  const Call& call() const { return call_; }
  const std::string& error() const { return error_; }

  // Fills in the buffers; `stream` is nullptr on hosts, where the call runs to completion.
  void take(const ffi::RemainingArgs& operands, const ffi::RemainingRets& results, void* stream) {
    std::vector<void*> buffers;
    for (size_t i = 0; i < operands.size(); ++i) buffers.push_back(operands.get<ffi::AnyBuffer>(i)->untyped_data());
    for (size_t i = 0; i < results.size(); ++i) buffers.push_back((*results.get<ffi::AnyBuffer>(i))->untyped_data());
    for (const Patch& patch : call_.patches)
      std::memcpy(&call_.blob[patch.offset], &buffers[patch.buffer], sizeof(void*));
    for (const Slot& slot : call_.slots) {
      switch (slot.kind) {
        case Kind::kValue:
          values_.push_back(reinterpret_cast<void*>(slot.value));
          break;
        case Kind::kBuffer:
          values_.push_back(buffers[slot.value]);
          break;
        case Kind::kBlob:
          values_.push_back(&call_.blob[slot.value]);
          break;
        case Kind::kStream:
          values_.push_back(stream);
          break;
      }
    }
  }

  // On hosts. The token is the last operand: the device's index along the axis of shard_map, plus one; 0 in gradients.
  void checkMesh(float token) {
    const int64_t index = static_cast<int64_t>(token) - 1;
    if (index < 0 || index == call_.rank) return;
    error_ = "seqpar: device " + std::to_string(device_) + " has index " + std::to_string(index) +
             " in the mesh of jax.shard_map, expected " + std::to_string(call_.rank) +
             ": its rank in the communicator. Pass both the same mesh";
    reinterpret_cast<int (*)(void*, const char*)>(call_.fail)(call_.rankComm, error_.c_str());
  }

  std::string run() override {
    const int result = invoke(call_.function, values_);
    if (result == 0) return "";
    const auto ofComm = reinterpret_cast<const char* (*)(void*)>(call_.errorText);
    const char* text = call_.comm ? ofComm(call_.comm) : reinterpret_cast<const char* (*)()>(call_.errorText)();
    if (call_.comm && !*text) text = ofComm(nullptr);  // of this thread
    return text && *text ? text : "seqpar: error " + std::to_string(result);
  }

  void end(const std::string& error) override {
    leave();
    if (error.empty()) {
      promise.SetAvailable();
    } else {
      promise.SetError(ffi::Error(ffi::ErrorCode::kInternal, error));
    }
  }

  ffi::Promise promise;  // on hosts

 private:
  void leave() {
    if (!counted_) return;
    std::lock_guard<std::mutex> lock(guard);
    --running[device_];
    counted_ = false;
  }

  int32_t device_;
  bool counted_ = false;
  Call call_ = {};
  std::vector<void*> values_;
  std::string error_;
};

// A custom call of a compiled program, which all devices share.
struct Site {
  static ffi::TypeId id;
  int64_t number;
};
ffi::TypeId Site::id = {};

std::map<void*, std::shared_ptr<seqpar::jax::Order>>& orders =
    *new std::map<void*, std::shared_ptr<seqpar::jax::Order>>;

ffi::Future runOnHost(int32_t device, ffi::RunId run, Site* site, ffi::RemainingArgs operands,
                      ffi::RemainingRets results, int64_t key) {
  const auto arrival = std::make_shared<Arrival>(device, key);
  ffi::Future future(arrival->promise);
  if (arrival->call().function == nullptr) {
    arrival->end(arrival->error());
    return future;
  }
  arrival->take(operands, results, nullptr);
  arrival->checkMesh(*static_cast<const float*>(operands.get<ffi::AnyBuffer>(operands.size() - 1)->untyped_data()));
  std::shared_ptr<seqpar::jax::Order> order;
  {
    std::lock_guard<std::mutex> lock(guard);
    std::shared_ptr<seqpar::jax::Order>& known = orders[arrival->call().group];
    if (!known) {
      known = std::make_shared<seqpar::jax::Order>(arrival->call().ranks,
                                                   std::chrono::milliseconds(arrival->call().timeout));
    }
    order = known;
  }
  order->arrive(arrival->call().rank, site->number, run.run_id, arrival, arrival->error());
  return future;
}

ffi::ErrorOr<std::unique_ptr<Site>> makeSite(int64_t) {
  static std::atomic<int64_t> sites{0};
  auto site = std::make_unique<Site>();
  site->number = sites++;
  return site;
}

ffi::Error runOnGpu(int32_t device, void* stream, ffi::RemainingArgs operands, ffi::RemainingRets results,
                    int64_t key) {
  Arrival arrival(device, key);
  if (!arrival.error().empty()) return ffi::Error(ffi::ErrorCode::kFailedPrecondition, arrival.error());
  arrival.take(operands, results, stream);
  const std::string error = arrival.run();
  return error.empty() ? ffi::Error::Success() : ffi::Error(ffi::ErrorCode::kInternal, error);
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(seqparJaxHost, runOnHost,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::DeviceOrdinal>()
                                  .Ctx<ffi::RunId>()
                                  .Ctx<ffi::State<Site>>()
                                  .RemainingArgs()
                                  .RemainingRets()
                                  .Attr<int64_t>("key"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(seqparJaxSite, makeSite, ffi::Ffi::BindInstantiate().Attr<int64_t>("key"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(seqparJaxGpu, runOnGpu,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::DeviceOrdinal>()
                                  .Ctx<ffi::PlatformStream<void*>>()
                                  .RemainingArgs()
                                  .RemainingRets()
                                  .Attr<int64_t>("key"),
                              {ffi::Traits::kCmdBufferCompatible});

// For jax.ffi.register_ffi_type().
extern "C" void* seqparJaxSiteId() {
  return &Site::id;
}

extern "C" const void* seqparJaxSiteInfo() {
  static constexpr auto info = ffi::MakeTypeInfo<Site>();
  return &info;
}

// Defines call `key` for the rank of `device`.
extern "C" void seqparJaxDefine(int64_t key, int32_t device, int32_t rank, int32_t ranks, int64_t timeout, void* group,
                                void* rankComm, void* fail, void* function, void* errorText, void* comm,
                                const Slot* slots, int64_t slotCount, const unsigned char* blob, int64_t blobBytes,
                                const Patch* patches, int64_t patchCount) {
  std::lock_guard<std::mutex> lock(guard);
  calls[{key, device}] = {function,
                          errorText,
                          comm,
                          rank,
                          rankComm,
                          fail,
                          group,
                          ranks,
                          timeout,
                          {slots, slots + slotCount},
                          {blob, blob + blobBytes},
                          {patches, patches + patchCount}};
}

// The number of calls of the device that have arrived and not ended.
extern "C" int seqparJaxRunning(int32_t device) {
  std::lock_guard<std::mutex> lock(guard);
  return running[device];
}

extern "C" void seqparJaxForget(int64_t key, int32_t device) {
  std::shared_ptr<seqpar::jax::Order> order;
  {
    std::lock_guard<std::mutex> lock(guard);
    const auto found = calls.find({key, device});
    if (found == calls.end()) return;
    const auto of = orders.find(found->second.group);
    if (of != orders.end()) {
      order = std::move(of->second);
      orders.erase(of);
    }
    calls.erase(found);
  }
  if (order) order->close();
}
