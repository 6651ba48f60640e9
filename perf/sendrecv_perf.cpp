// sendrecv_perf: seqparSendRecv between neighbors; peers by MPI on hosts, by NCCL and the copy engine on GPUs.
#include <memory>

#include "common/buffer.h"
#include "common/nccl.h"
#include "common/session.h"

#ifdef SEQPAR_PERF_MPI
#include <mpi.h>
#endif

namespace seqpar::perf {
namespace {

enum Pattern { kPingPong, kShift };
const Names kPatterns{{"pingpong", kPingPong}, {"shift", kShift}};

/// The byte at `index` of the data that `rank` sends.
unsigned char byteOf(int rank, size_t index) {
  return static_cast<unsigned char>((index * 31 + static_cast<size_t>(rank) * 97 + (index >> 8) + 1) & 0x7f);
}

/// One rank's sends and receives, with their buffers.
struct Exchange {
  Exchange(Pattern aPattern, size_t bytes, Group& group)
      : pattern(aPattern),
        rank(group.rank()),
        comm(group.comm()),
        next(pattern == kPingPong ? 1 - rank : (rank + 1) % group.size()),
        previous(pattern == kPingPong ? next : (rank + group.size() - 1) % group.size()),
        takesPart(pattern == kShift || rank < 2),
        send(bytes, comm),
        receive(bytes, comm) {
    auto* const sent = send.as<unsigned char>();
    for (size_t i = 0; i < bytes; ++i) sent[i] = byteOf(rank, i);
    send.upload();
  }

  size_t wrong() {
    receive.download();
    return wrongIn(receive.as<unsigned char>(), previous);
  }
  /// Bytes of `got` that differ from the data that `sender` sends.
  size_t wrongIn(const unsigned char* got, int sender) const {
    size_t count = 0;
    for (size_t i = 0; i < receive.bytes(); ++i) count += got[i] == byteOf(sender, i) ? 0 : 1;
    return count;
  }

  Pattern pattern;
  int rank;
  seqparComm_t comm;
  int next, previous;
  bool takesPart;
  Buffer send, receive;
};

/// A work without run().
Work workOn(const std::shared_ptr<Exchange>& exchange) {
  Work work;
  work.prepare = [exchange] { exchange->receive.fill(0xff); };
  work.wrong = [exchange] { return exchange->wrong(); };
  work.takesPart = exchange->takesPart;
  work.timesPerIteration = exchange->pattern == kPingPong ? 2 : 1;
  return work;
}

Work libraryWork(const std::shared_ptr<Exchange>& exchange, void* stream) {
  Work work = workOn(exchange);
  const auto transfer = [exchange, stream](int to, int from) {
    Exchange& x = *exchange;
    const size_t sent = to == SEQPAR_NO_PEER ? 0 : x.send.bytes();
    const size_t received = from == SEQPAR_NO_PEER ? 0 : x.receive.bytes();
    require(seqparSendRecv(x.send.data(), sent, to, x.receive.data(), received, from, x.comm, stream), "seqparSendRecv",
            x.comm);
  };
  work.run = [exchange, transfer] {
    const Exchange& x = *exchange;
    if (x.pattern == kShift) return transfer(x.next, x.previous);
    if (!x.takesPart) return;
    if (x.rank == 0) transfer(x.next, SEQPAR_NO_PEER);
    transfer(SEQPAR_NO_PEER, x.previous);
    if (x.rank == 1) transfer(x.next, SEQPAR_NO_PEER);
  };
  return work;
}

Work ncclWork(const std::shared_ptr<Exchange>& exchange, Nccl& nccl) {
  Work work = workOn(exchange);
  work.run = [exchange, &nccl] {
    Exchange& x = *exchange;
    const auto send = [&] { nccl.send(x.send.data(), x.send.bytes(), x.next); };
    const auto receive = [&] { nccl.receive(x.receive.data(), x.receive.bytes(), x.previous); };
    if (x.pattern == kShift) {
      nccl.groupStart();
      send();
      receive();
      return nccl.groupEnd();
    }
    if (!x.takesPart) return;
    if (x.rank == 0) send();
    receive();
    if (x.rank == 1) send();
  };
  return work;
}

/// The hardware's limit: the copy engine writes to the next rank, without synchronization. The ping-pong consists of
/// the ping only.
Work copyWork(const std::shared_ptr<Exchange>& exchange, Gpu& gpu) {
  std::shared_ptr<Window> window = gpu.window(exchange->send.bytes());
  if (!window) return {};
  Work work = workOn(exchange);
  const bool shift = exchange->pattern == kShift;
  work.takesPart = shift || exchange->rank == 0;
  work.timesPerIteration = 1;
  work.prepare = [exchange, window] { gpuFill(window->at(exchange->rank), 0xff, exchange->send.bytes()); };
  work.run = [exchange, window, &gpu, takesPart = work.takesPart] {
    Exchange& x = *exchange;
    if (takesPart) gpu.copy(window->at(x.next), x.send.data(), x.send.bytes());
  };
  work.wrong = [exchange, window] {
    Exchange& x = *exchange;
    std::vector<unsigned char> got(x.send.bytes());
    if (!got.empty()) gpuCopy(got.data(), window->at(x.next), got.size());
    return x.wrongIn(got.data(), x.rank);
  };
  return work;
}

#ifdef SEQPAR_PERF_MPI
Work mpiWork(const std::shared_ptr<Exchange>& exchange) {
  Work work = workOn(exchange);
  work.run = [exchange] {
    Exchange& x = *exchange;
    const int bytes = static_cast<int>(x.send.bytes());
    const auto send = [&] { MPI_Send(x.send.data(), bytes, MPI_BYTE, x.next, 0, MPI_COMM_WORLD); };
    if (x.pattern == kShift) {
      MPI_Sendrecv(x.send.data(), bytes, MPI_BYTE, x.next, 0, x.receive.data(), bytes, MPI_BYTE, x.previous, 0,
                   MPI_COMM_WORLD, MPI_STATUS_IGNORE);
      return;
    }
    if (!x.takesPart) return;
    if (x.rank == 0) send();
    MPI_Recv(x.receive.data(), bytes, MPI_BYTE, x.previous, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    if (x.rank == 1) send();
  };
  return work;
}
#endif

/// The rows of one pattern and size.
class Comparison {
 public:
  Comparison(Session& session, Pattern pattern, size_t bytes)
      : session_(session), exchange_(std::make_shared<Exchange>(pattern, bytes, session.group)) {
    add("seqpar", RowKind::Library, libraryWork(exchange_, session.stream));
  }

  void addPeers(Nccl* nccl) {
    if (nccl != nullptr) add("nccl", RowKind::Peer, ncclWork(exchange_, *nccl));
    Gpu* const gpu = session_.group.gpu();
    if (gpu != nullptr) {
      Work copy = copyWork(exchange_, *gpu);
      if (copy.run) add("copy", RowKind::Limit, std::move(copy));
      return;
    }
#ifdef SEQPAR_PERF_MPI
    add("mpi", RowKind::Peer, mpiWork(exchange_));
#endif
  }

  /// Measures and prints.
  void run() {
    std::vector<Row> rows = session_.measure(cases_);
    for (Row& row : rows) {
      row.extras = {row.outOfPlace.us / rows[0].outOfPlace.us};
      session_.report.row(row);
    }
  }

 private:
  void add(const char* by, RowKind kind, Work work) {
    Row row;
    row.bytes = row.count = exchange_->send.bytes();
    row.labels = {nameOf(exchange_->pattern, kPatterns), by};
    row.kind = kind;
    cases_.push_back({row, std::move(work), {}});
  }

  Session& session_;
  std::shared_ptr<Exchange> exchange_;
  std::vector<Case> cases_;
};

void runAll(Session& session, const std::vector<int>& patterns) {
  std::unique_ptr<Nccl> nccl;
  if (session.settings.peers && session.settings.gpu) {
    std::string reason;
    nccl = makeNccl(session.group, reason);
    session.report.note(nccl ? "NCCL " + nccl->version() : "no NCCL peers: " + reason);
  }
  forEachSize(session, patterns, [&](int pattern, size_t size) {
    Comparison comparison(session, static_cast<Pattern>(pattern), size);
    if (session.settings.peers) comparison.addPeers(nccl.get());
    comparison.run();
  });
}

}  // namespace
}  // namespace seqpar::perf

int main(int argc, char** argv) {
  using namespace seqpar::perf;
  std::vector<int> patterns{kPingPong};
  Program program;
  program.name = "sendrecv_perf";
  program.leastRanks = 2;
  program.knowsGpus = true;
  program.summary =
      "seqparSendRecv: latency and bandwidth. pingpong: ranks 0 and 1 in turn, time is half a round trip. shift:\n"
      "every rank sends to the next and receives from the previous one, concurrently. On GPUs, copy is the copy "
      "engine\n"
      "writing to the neighbor's memory.";
  program.addOptions = [&](OptionParser& parser) {
    parser.addNames(0, "pattern", "pingpong, shift or all (pingpong)", kPatterns, patterns);
  };
  program.layout = [] {
    return Layout{{{"pattern", "", 8, InPlot::Panel}, {"by", "", 7}}, false, {{"/seqpar", "(x)", 8}}};
  };
  program.body = [&](Session& session) { runAll(session, patterns); };
  return runProgram(program, argc, argv);
}
