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

class PreparedHostExchange : public PreparedExchange, public std::enable_shared_from_this<PreparedHostExchange> {
 public:
  PreparedHostExchange(Communicator& comm, const char* call, const Route& route)
      : comm_(comm), call_(call), exchange_(comm.mailbox(), route) {}

  void run(const std::byte* send, std::byte* receive, const CallerStream& stream) override {
    if (!stream.host) return comm_.run(call_, nullptr, [&](Mailbox& mail) { runInTurn(mail, send, receive); });
    comm_.run(call_, stream.host.get(),
              [self = shared_from_this(), send, receive](Mailbox& mail) { self->runInTurn(mail, send, receive); });
  }

 private:
  /// Operations of a communicator run one at a time, so no two threads use `exchange_`.
  void runInTurn(Mailbox& mail, const std::byte* send, std::byte* receive) {
    exchange_.run(mail, std::span(&send, 1), std::span(&receive, 1));
  }

  Communicator& comm_;
  const char* const call_;
  HostExchange exchange_;
};

class HostExchanges : public ExchangeBackend {
 public:
  void shift(Communicator& comm, const char* call, const Flow& flow, const CallerStream& stream) const override {
    if (!stream.host) return comm.run(call, nullptr, [&flow](Mailbox& mail) { carryOut(mail, flow); });
    if (flow.out.size() == 1 && flow.in.size() == 1) {  // without lists
      comm.run(call, stream.host.get(),
               [to = flow.to, from = flow.from, out = flow.out[0], in = flow.in[0]](Mailbox& mail) {
                 carryOut(mail, {to, std::span(&out, 1), from, std::span(&in, 1)});
               });
      return;
    }
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

  std::shared_ptr<PreparedExchange> prepare(Communicator& comm, const char* call, const Route& route) const override {
    return std::make_shared<PreparedHostExchange>(comm, call, route);
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
