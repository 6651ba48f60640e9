// Exchanges on host memory, through the mailbox.
#include <cstring>
#include <utility>

#include "exchange/backend.h"
#include "exchange/clear.h"
#include "exchange/exchange.h"

namespace seqpar {
namespace {

void carryOut(Mailbox& mail, const Flow& flow) {
  if (flow.to != mail.rank()) return exchangeFlows(mail, std::span(&flow, 1));
  for (size_t i = 0; i < flow.out.size(); ++i) {
    if (!flow.out[i].empty()) std::memcpy(flow.in[i].data(), flow.out[i].data(), flow.out[i].size());
  }
}

class HostExchanges : public ExchangeBackend {
 public:
  void shift(Communicator& comm, const char* call, const Flow& flow, const CallerStream& stream) const override {
    if (!stream.host) return comm.run(call, nullptr, [&flow](Mailbox& mail) { carryOut(mail, flow); });
    comm.run(call, stream.host.get(),
             [to = flow.to, from = flow.from, out = std::vector(flow.out.begin(), flow.out.end()),
              in = std::vector(flow.in.begin(), flow.in.end())](Mailbox& mail) {
               carryOut(mail, {to, out, from, in});
             });
  }

  void exchange(Communicator& comm, const char* call, Exchange exchange, const CallerStream& stream) const override {
    comm.run(call, stream.host.get(), [given = std::move(exchange)](Mailbox& mail) {
      clearOnHost(given.zeros, given.receives);
      exchangeOnHost(mail, *given.route, given.sends, given.receives);
    });
  }

  void reduce(Communicator& comm, const char* call, BufferedReduction reduction,
              const CallerStream& stream) const override {
    comm.run(call, stream.host.get(), [given = std::move(reduction)](Mailbox& mail) {
      reduceOnHost(mail, *given.reduction, given.type, given.sends, given.receives);
    });
  }

  void reduceLse(Communicator& comm, const char* call, LseReduction reduction,
                 const CallerStream& stream) const override {
    comm.run(call, stream.host.get(), [given = std::move(reduction)](Mailbox& mail) { reduceLseOnHost(mail, given); });
  }

  void mergeLse(Communicator& comm, const char* call, const LseMerge& merge,
                const CallerStream& stream) const override {
    comm.run(call, stream.host.get(), [merge](Mailbox& mail) { mergeLseOnHost(mail, merge); });
  }
};

}  // namespace

const ExchangeBackend& hostExchanges() {
  static const HostExchanges backend;
  return backend;
}

}  // namespace seqpar
