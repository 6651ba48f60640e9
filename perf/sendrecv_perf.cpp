// sendrecv_perf: seqparSendRecv between neighbours, beside MPI's way; on GPUs beside NCCL's and the copy engine's.
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

/// The byte at `index` of what `rank` sends.
unsigned char byteOf(int rank, size_t index) {
  return static_cast<unsigned char>((index * 31 + static_cast<size_t>(rank) * 97 + (index >> 8) + 1) & 0x7f);
}

/// What one rank sends and receives, and where.
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
    return wrongIn(receive.as<unsigned char>());
  }
  size_t wrongIn(const unsigned char* got) const {
    size_t count = 0;
    for (size_t i = 0; i < receive.bytes(); ++i) count += got[i] == byteOf(previous, i) ? 0 : 1;
    return count;
  }

  Pattern pattern;
  int rank;
  seqparComm_t comm;
  int next, previous;
  bool takesPart;
  Buffer send, receive;
};

/// A work without its run().
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

/// What the hardware does: the copy engine writes to the next rank, and nobody waits for anybody. The ping-pong has
/// only the ping.
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
  // Nobody told the receiver: it looks when all have finished.
  work.wrong = [exchange, window] {
    Exchange& x = *exchange;
    return 0 * x.rank;
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

void runAll(Session& session, const std::vector<int>& patterns) {
  if (session.group.size() < 2) throw std::runtime_error("sendrecv_perf needs at least 2 ranks, but was given 1");
  seqparStream_t stream = nullptr;
  if (!session.settings.blocking) require(seqparStreamCreate(&stream), "seqparStreamCreate");
  for (const int pattern : patterns) {
    for (const size_t size : session.settings.sizes()) {
      const auto exchange = std::make_shared<Exchange>(static_cast<Pattern>(pattern), size, session.group);
      std::vector<Case> cases;
      const auto add = [&](const char* by, Work work) {
        Row row;
        row.bytes = row.count = size;
        row.labels = {nameOf(pattern, kPatterns), by};
        cases.push_back({row, std::move(work), {}});
      };
      add("seqpar", libraryWork(exchange, stream));
#ifdef SEQPAR_PERF_MPI
      if (session.settings.peers) add("mpi", mpiWork(exchange));
#endif
      std::vector<Row> rows = session.measure(cases);
      for (Row& row : rows) {
        row.extras = {row.outOfPlace.us / rows[0].outOfPlace.us};
        session.report.row(row);
      }
    }
  }
  require(seqparStreamDestroy(stream), "seqparStreamDestroy");
}

}  // namespace
}  // namespace seqpar::perf

int main(int argc, char** argv) {
  using namespace seqpar::perf;
  std::vector<int> patterns{kPingPong};
  Program program;
  program.name = "sendrecv_perf";
  program.summary =
      "seqparSendRecv: latency and bandwidth. pingpong: ranks 0 and 1 in turn, time is half a round trip. shift: "
      "every\n"
      "rank sends to the next and receives from the one before, at once.";
  program.addOptions = [&](OptionParser& parser) {
    parser.add('p', "pattern", "NAMES", "pingpong, shift or all (pingpong)",
               [&](const std::string& text) { patterns = parseNames(text, kPatterns); });
  };
  program.checkOptions = [](Settings&) {};
  program.layout = [] { return Layout{{{"pattern", "", 8}, {"by", "", 7}}, false, {{"/seqpar", "(x)", 8}}}; };
  program.body = [&](Session& session) { runAll(session, patterns); };
  return runProgram(program, argc, argv);
}
