// Where a communicator's exchanges run: on host memory through the mailbox (host_backend.cpp), or on GPUs by kernels
// or NCCL (device_exchanges.h). Only backend.cpp knows which backends a build contains.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "comm/communicator.h"
#include "exchange/flows.h"
#include "exchange/lse.h"
#include "exchange/lse_merge.h"
#include "exchange/reduction.h"
#include "exchange/route.h"

namespace seqpar {

/// A route and the buffers that its regions index. Send and receive buffers do not overlap.
struct Exchange {
  std::shared_ptr<const Route> route;
  std::vector<const std::byte*> sends;
  std::vector<std::byte*> receives;
  std::vector<StridedRegion> zeros;  ///< of the receive buffers: zeroed before any data arrives
};

/// A reduction of elements of `type`; its buffers as in an Exchange.
struct BufferedReduction {
  std::shared_ptr<const Reduction> reduction;
  seqparDataType_t type;
  std::vector<const std::byte*> sends;
  std::vector<std::byte*> receives;
};

/// A repeated exchange from one buffer to one buffer, without zeros. Stores everything that depends on the route only.
class PreparedExchange {
 public:
  PreparedExchange() = default;
  PreparedExchange(const PreparedExchange&) = delete;
  PreparedExchange& operator=(const PreparedExchange&) = delete;
  virtual ~PreparedExchange() = default;

  /// As ExchangeBackend::exchange().
  virtual void run(const std::byte* send, std::byte* receive, const CallerStream& stream) = 0;
};

/// Each call is a separate operation, named `call` (a literal) and ordered by `stream`. Every rank named in another
/// rank's route takes part; other ranks need not. Stateless.
class ExchangeBackend {
 public:
  ExchangeBackend() = default;
  ExchangeBackend(const ExchangeBackend&) = delete;
  ExchangeBackend& operator=(const ExchangeBackend&) = delete;
  virtual ~ExchangeBackend() = default;

  /// `flow` as in exchangeFlows(), or to and from this rank. Its lists need not outlive the call.
  virtual void shift(Communicator& comm, const char* call, const Flow& flow, const CallerStream& stream) const = 0;
  virtual void exchange(Communicator& comm, const char* call, Exchange exchange, const CallerStream& stream) const = 0;
  /// Prepares exchanges of this route, in the name of `call`. `comm` must outlive the result. Null: not implemented by
  /// this backend.
  virtual std::shared_ptr<PreparedExchange> prepare(Communicator&, const char*, const Route&) const { return nullptr; }
  virtual void reduce(Communicator& comm, const char* call, BufferedReduction reduction,
                      const CallerStream& stream) const = 0;
  virtual void reduceLse(Communicator& comm, const char* call, LseReduction reduction,
                         const CallerStream& stream) const = 0;
  virtual void mergeLse(Communicator& comm, const char* call, const LseMerge& merge,
                        const CallerStream& stream) const = 0;
};

/// The backend for `comm`'s kind of memory.
const ExchangeBackend& exchangesOf(const Communicator& comm);

/// The backend of communicators on host memory.
const ExchangeBackend& hostExchanges();

}  // namespace seqpar
