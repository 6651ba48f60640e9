// Where a communicator's exchanges run: on host memory by the mailbox (host_backend.cpp), or on GPUs by kernels and
// NCCL's steps (device_backend.cpp). Only backend.cpp knows which of them a build has.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "comm/communicator.h"
#include "exchange/flows.h"
#include "exchange/lse.h"
#include "exchange/reduction.h"
#include "exchange/route.h"

namespace seqpar {

/// A route with the buffers that its regions count from. Send and receive buffers do not overlap.
struct Exchange {
  std::shared_ptr<const Route> route;
  std::vector<const std::byte*> sends;
  std::vector<std::byte*> receives;
  std::vector<StridedRegion> zeros;  ///< of the receive buffers: set to 0 before anything comes
};

/// A reduction of elements of `type`, with its buffers as in an Exchange.
struct BufferedReduction {
  std::shared_ptr<const Reduction> reduction;
  seqparDataType_t type;
  std::vector<const std::byte*> sends;
  std::vector<std::byte*> receives;
};

/// Each call is an operation of its own, named `call` (a literal) and in the order of `stream`. Every rank that is
/// named in another's route takes part; ranks that nobody names need not. Has no state.
class ExchangeBackend {
 public:
  ExchangeBackend() = default;
  ExchangeBackend(const ExchangeBackend&) = delete;
  ExchangeBackend& operator=(const ExchangeBackend&) = delete;
  virtual ~ExchangeBackend() = default;

  /// `flow` as exchangeFlows() says, or to and from this rank. Its lists need not outlive the call.
  virtual void shift(Communicator& comm, const char* call, const Flow& flow, const CallerStream& stream) const = 0;
  virtual void exchange(Communicator& comm, const char* call, Exchange exchange, const CallerStream& stream) const = 0;
  virtual void reduce(Communicator& comm, const char* call, BufferedReduction reduction,
                      const CallerStream& stream) const = 0;
  virtual void reduceLse(Communicator& comm, const char* call, LseReduction reduction,
                         const CallerStream& stream) const = 0;
};

/// The backend of `comm`'s kind of memory.
const ExchangeBackend& exchangesOf(const Communicator& comm);

/// The two of them; the second only in builds with CUDA.
const ExchangeBackend& hostExchanges();
const ExchangeBackend& deviceExchanges();

}  // namespace seqpar
