#include "exchange/device_exchanges.h"

#include "base/error.h"
#include "exchange/device_clear.h"
#include "exchange/device_lse_merge.h"
#include "exchange/device_reduction.h"

namespace seqpar {

void DeviceExchanges::shift(Communicator& comm, const char* call, const Flow& flow, const CallerStream& stream) const {
  comm.enqueue(call, stream.device, [&](DeviceGroup& group) { moveFlow(group, flow, stream.device); });
}

void DeviceExchanges::exchange(Communicator& comm, const char* call, Exchange exchange,
                               const CallerStream& stream) const {
  comm.enqueue(call, stream.device, [&](DeviceGroup& group) {
    clearOnDevice(exchange.zeros, exchange.receives, stream.device);
    move(group, *exchange.route, exchange.sends, exchange.receives, stream.device);
  });
}

void DeviceExchanges::reduce(Communicator& comm, const char* call, BufferedReduction reduction,
                             const CallerStream& stream) const {
  comm.enqueue(call, stream.device, [&](DeviceGroup& group) {
    reduceOnDevice(*this, group, *reduction.reduction, reduction.type, reduction.sends, reduction.receives,
                   stream.device);
  });
}

void DeviceExchanges::reduceLse(Communicator& comm, const char* call, LseReduction reduction,
                                const CallerStream& stream) const {
  comm.enqueue(call, stream.device,
               [&](DeviceGroup& group) { reduceLseOnDevice(*this, group, reduction, stream.device); });
}

void DeviceExchanges::mergeLse(Communicator& comm, const char* call, const LseMerge& merge,
                               const CallerStream& stream) const {
  comm.enqueue(call, stream.device, [&](DeviceGroup& group) { mergeLseOnDevice(*this, group, merge, stream.device); });
}

// `if constexpr` discards the branch of a backend that this build omits.
const DeviceExchanges& exchangesOf(const DeviceGroup& group) {
  if (group.direct()) return peerExchanges();
  if constexpr (SEQPAR_HAS_NCCL) {
    return ncclExchanges();
  } else {
    fail(seqparInternalError, "an exchange by NCCL in a build without it");
  }
}

}  // namespace seqpar
