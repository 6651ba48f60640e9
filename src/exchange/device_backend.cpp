// Exchanges on GPUs.
#include "exchange/backend.h"
#include "exchange/device_clear.h"
#include "exchange/device_exchange.h"
#include "exchange/device_lse_merge.h"
#include "exchange/device_reduction.h"

namespace seqpar {
namespace {

/// Adds a list of tensors to a route, as its buffers; empty tensors are not sent.
template <typename Byte>
void addTensors(std::span<const std::span<Byte>> tensors, int peer, std::vector<Transfer>& transfers,
                std::vector<Byte*>& buffers) {
  if (peer == SEQPAR_NO_PEER) return;
  for (const auto& tensor : tensors) {
    const StridedRegion whole{.buffer = static_cast<int>(buffers.size()), .run = tensor.size()};
    buffers.push_back(tensor.data());
    if (!tensor.empty()) transfers.push_back({peer, whole});
  }
}

class DeviceExchanges : public ExchangeBackend {
 public:
  void shift(Communicator& comm, const char* call, const Flow& flow, const CallerStream& stream) const override {
    Route route;
    std::vector<const std::byte*> sends;
    std::vector<std::byte*> receives;
    addTensors(flow.out, flow.to, route.sends, sends);
    addTensors(flow.in, flow.from, route.receives, receives);
    comm.enqueue(call, stream.device,
                 [&](DeviceGroup& group) { exchangeOnDevice(group, route, sends, receives, stream.device); });
  }

  void exchange(Communicator& comm, const char* call, Exchange exchange, const CallerStream& stream) const override {
    comm.enqueue(call, stream.device, [&](DeviceGroup& group) {
      clearOnDevice(exchange.zeros, exchange.receives, stream.device);
      exchangeOnDevice(group, *exchange.route, exchange.sends, exchange.receives, stream.device);
    });
  }

  void reduce(Communicator& comm, const char* call, BufferedReduction reduction,
              const CallerStream& stream) const override {
    comm.enqueue(call, stream.device, [&](DeviceGroup& group) {
      reduceOnDevice(group, *reduction.reduction, reduction.type, reduction.sends, reduction.receives, stream.device);
    });
  }

  void reduceLse(Communicator& comm, const char* call, LseReduction reduction,
                 const CallerStream& stream) const override {
    comm.enqueue(call, stream.device, [&](DeviceGroup& group) { reduceLseOnDevice(group, reduction, stream.device); });
  }

  void mergeLse(Communicator& comm, const char* call, const LseMerge& merge,
                const CallerStream& stream) const override {
    comm.enqueue(call, stream.device, [&](DeviceGroup& group) { mergeLseOnDevice(group, merge, stream.device); });
  }
};

}  // namespace

const ExchangeBackend& deviceExchanges() {
  static const DeviceExchanges backend;
  return backend;
}

}  // namespace seqpar
