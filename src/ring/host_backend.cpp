#include <utility>

#include "base/shared_buffers.h"
#include "exchange/flows.h"
#include "ring/backend.h"

namespace seqpar {
namespace {

/// A transfer through the mailbox; the tensors are not copied.
struct HostTransfer {
  int to, from;
  std::vector<std::span<const std::byte>> out;
  std::vector<std::span<std::byte>> in;
};

void carryOut(Mailbox& mail, const std::vector<HostTransfer>& transfers) {
  std::vector<Flow> flows;
  flows.reserve(transfers.size());
  for (const auto& transfer : transfers) flows.push_back({transfer.to, transfer.out, transfer.from, transfer.in});
  exchangeFlows(mail, flows);
}

/// Number of polls, yielding the processor, before sleeping. A thread that sleeps at once is woken on its waker's
/// processor, where ring and computation would alternate; if it stays awake for a millisecond, the scheduler gives both
/// a processor.
unsigned pollCount(const Communicator& comm) {
  constexpr unsigned kWithOwnCore = 4000, kShared = 100;
  return comm.topology().coresPerRank >= 2 ? kWithOwnCore : kShared;
}

class HostRingBackend : public RingBackend {
 public:
  HostRingBackend(std::shared_ptr<Communicator> comm, const RingBuffers& buffers)
      : comm_(std::move(comm)), own_(pollCount(*comm_)) {
    for (int set = 0; set < buffers.sets; ++set) addSet(buffers, set);
  }

  const char* name() const override { return "messages on a thread of the ring"; }

  std::byte* buffer(int set, size_t tensor) const override { return sets_[static_cast<size_t>(set)][tensor]; }

  void post(const std::vector<RingTransfer>& transfers, const CallerStream& stream) override {
    std::vector<HostTransfer> work;
    for (const auto& transfer : transfers) {
      HostTransfer& made = work.emplace_back(HostTransfer{transfer.to, transfer.from, {}, {}});
      for (const auto& part : transfer.out) {
        made.out.push_back(part.source == nullptr ? bytesOf(part) : std::span(part.source, part.bytes));
      }
      for (const auto& part : transfer.in) made.in.push_back(bytesOf(part));
    }
    if (stream.host) {
      HostEvent ready;
      ready.record(*stream.host);
      ready.makeWait(own_);
    } else {
      own_.inherit({});
    }
    comm_->run("seqparRingPost", &own_, [work = std::move(work)](Mailbox& mail) { carryOut(mail, work); });
    done_.record(own_);
  }

  void wait(const CallerStream& stream) override {
    // A failed transfer has failed the communicator, which keeps the error.
    if (!stream.host) {
      done_.synchronize();
      comm_->health().check();
      return;
    }
    done_.makeWait(*stream.host);
    stream.host->enqueue([comm = comm_] { comm->health().check(); });
  }

 private:
  void addSet(const RingBuffers& buffers, int set) {
    auto& pointers = sets_.emplace_back();
    const auto number = static_cast<size_t>(set);
    for (size_t tensor = 0; tensor < buffers.mostBytes.size(); ++tensor) {
      const bool home = set == 0;
      const bool given = home ? !buffers.home.empty() : !buffers.scratch.empty();
      if (given) {
        pointers.push_back(home ? buffers.home[tensor] : buffers.scratch[number - 1][tensor]);
        continue;
      }
      // Arrivals overwrite home too, unless it is kept, so it has the same size.
      const size_t bytes = buffers.mostBytes[tensor];
      pages_.push_back(bytes > 0 ? allocateShared(bytes, "a buffer of a ring") : nullptr);
      pointers.push_back(pages_.back().get());
    }
  }

  std::span<std::byte> bytesOf(const RingPart& part) const {
    std::byte* const begin = buffer(part.set, part.tensor);
    return part.bytes == 0 ? std::span<std::byte>() : std::span(begin + part.offset, part.bytes);
  }

  std::shared_ptr<Communicator> comm_;
  std::vector<std::shared_ptr<std::byte>> pages_;
  std::vector<std::vector<std::byte*>> sets_;
  HostEvent done_;
  HostStream own_;  // last: it ends before the members that its work uses
};

}  // namespace

std::unique_ptr<RingBackend> makeHostRingBackend(std::shared_ptr<Communicator> comm, const RingBuffers& buffers) {
  return std::make_unique<HostRingBackend>(std::move(comm), buffers);
}

}  // namespace seqpar
