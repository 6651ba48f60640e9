// ring_perf: tensors that go round a ring, alone and beside computation, beside MPI's ways.
#include <algorithm>
#include <chrono>
#include <limits>
#include <memory>
#include <vector>

#include "common/session.h"
#include "ring/tensors.h"
#include "seqpar/ring.h"

#ifdef SEQPAR_PERF_MPI
#include <mpi.h>
#endif

namespace seqpar::perf {
namespace {

enum Pattern { kShift, kRing, kOverlap };
const Names kPatterns{{"shift", kShift}, {"ring", kRing}, {"overlap", kOverlap}};

struct Options {
  std::vector<int> patterns{kShift, kRing, kOverlap};
  int tensors = 2;
  size_t inner = 0;
};

/// Arithmetic that needs a processor and no memory.
void compute(long rounds) {
  volatile double sink = 0;
  double a = 1, b = 2, c = 3, d = 4;
  for (long i = 0; i < rounds; ++i) {
    a = a * 0.9999 + 0.1;
    b = b * 0.9998 + 0.1;
    c = c * 0.9997 + 0.1;
    d = d * 0.9996 + 0.1;
  }
  sink = a + b + c + d;
  static_cast<void>(sink);
}

/// Rounds of compute() that take `us` on the slowest rank.
long roundsFor(double us, Group& group) {
  constexpr long kProbe = 200000;
  double best = std::numeric_limits<double>::infinity();
  for (int i = 0; i < 5; ++i) {
    const auto start = std::chrono::steady_clock::now();
    compute(kProbe);
    const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - start;
    best = std::min(best, took.count());
  }
  const double mine = best / kProbe;
  return static_cast<long>(us / combine(group.gather(std::span(&mine, 1)), Average::Most));
}

using TensorsPointer = std::shared_ptr<Tensors>;

Work shiftWork(const TensorsPointer& tensors, seqparStream_t stream) {
  Work work;
  work.prepare = [tensors] { tensors->spoil(); };
  work.run = [tensors, stream] {
    std::vector<const void*> send(tensors->set(0), tensors->set(1));
    seqparShiftParams_t params = SEQPAR_SHIFT_PARAMS_INITIALIZER;
    params.sendTensors = params.receiveTensors = tensors->count();
    params.sendPeer = tensors->rankAfter(1);
    params.receivePeer = tensors->rankAfter(-1);
    params.sendBuffers = send.data();
    params.receiveBuffers = tensors->set(1);
    params.sendBytes = params.receiveBytes = tensors->sizes().data();
    require(seqparShift(&params, tensors->group().comm(), stream), "seqparShift", tensors->group().comm());
  };
  if (stream != nullptr)
    work.finish = [stream] { require(seqparStreamSynchronize(stream), "seqparStreamSynchronize"); };
  work.wrong = [tensors] { return tensors->wrong(tensors->set(1), tensors->rankAfter(-1)); };
  return work;
}

/// Sets of buffers that are enough for a ring that keeps its home: plain, and double.
constexpr int kPlainSets = 3, kDoubleSets = 5;

/// The library's ring over all sets of the tensors.
class OpenRing {
 public:
  OpenRing(TensorsPointer tensors, size_t inner, seqparStream_t stream)
      : tensors_(std::move(tensors)), comm_(tensors_->group().comm()), stream_(stream) {
    seqparRingParams_t params = SEQPAR_RING_PARAMS_INITIALIZER;
    params.tensors = tensors_->count();
    params.bytes = tensors_->sizes().data();
    params.inner = static_cast<int>(inner);
    params.keepHome = 1;
    params.home = tensors_->set(0);
    params.scratch = tensors_->set(1);
    require(seqparRingOpen(&ring_, &params, comm_), "seqparRingOpen", comm_);
  }
  OpenRing(const OpenRing&) = delete;
  OpenRing& operator=(const OpenRing&) = delete;
  ~OpenRing() { seqparRingClose(ring_); }

  void round(long rounds) {
    require(seqparRingReset(ring_), "seqparRingReset", comm_);
    for (int step = 0; step + 1 < tensors_->group().size(); ++step) {
      require(seqparRingPost(ring_, stream_), "seqparRingPost", comm_);
      computeOnStream(rounds);
      require(seqparRingWait(ring_, stream_), "seqparRingWait", comm_);
    }
  }

  void spoil() { tensors_->spoil(); }

  void finish() {
    if (stream_ != nullptr) require(seqparStreamSynchronize(stream_), "seqparStreamSynchronize");
  }

  size_t wrong() const {
    std::vector<void*> pointers(static_cast<size_t>(tensors_->count()));
    seqparRingInfo_t info = SEQPAR_RING_INFO_INITIALIZER;
    require(seqparRingQuery(ring_, &info), "seqparRingQuery", comm_);
    for (int i = 0; i < tensors_->count(); ++i) {
      require(seqparRingCurrent(ring_, i, &pointers[static_cast<size_t>(i)], nullptr), "seqparRingCurrent", comm_);
    }
    return tensors_->wrong(pointers.data(), info.source);
  }

 private:
  void computeOnStream(long rounds) {
    if (rounds == 0) return;
    if (stream_ == nullptr) return compute(rounds);
    rounds_ = rounds;
    require(seqparStreamLaunch(
                stream_, [](void* argument) { compute(*static_cast<const long*>(argument)); }, &rounds_),
            "seqparStreamLaunch");
  }

  TensorsPointer tensors_;
  seqparComm_t comm_;
  seqparStream_t stream_;
  seqparRing_t ring_ = nullptr;
  long rounds_ = 0;
};

Work ringWork(const std::shared_ptr<OpenRing>& ring, int steps, long rounds) {
  Work work;
  work.prepare = [ring] { ring->spoil(); };
  work.run = [ring, rounds] { ring->round(rounds); };
  work.finish = [ring] { ring->finish(); };
  work.wrong = [ring] { return ring->wrong(); };
  work.timesPerIteration = steps;
  return work;
}

Work computeWork(int steps, long rounds) {
  Work work;
  work.prepare = [] {};
  work.run = [steps, rounds] {
    for (int step = 0; step < steps; ++step) compute(rounds);
  };
  work.wrong = [] { return size_t{0}; };
  work.timesPerIteration = steps;
  return work;
}

#ifdef SEQPAR_PERF_MPI
/// `steps` shifts, each posted before compute() and waited for after it.
Work mpiWork(const TensorsPointer& tensors, int steps, long rounds) {
  Work work;
  work.prepare = [tensors] { tensors->spoil(); };
  work.run = [tensors, steps, rounds] {
    std::vector<MPI_Request> requests(2 * tensors->sizes().size());
    for (int step = 0; step < steps; ++step) {
      void* const* from = tensors->set(step == 0 ? 0 : 2 - step % 2);
      void* const* into = tensors->set(1 + step % 2);
      for (size_t i = 0; i < tensors->sizes().size(); ++i) {
        const int bytes = static_cast<int>(tensors->sizes()[i]);
        MPI_Irecv(into[i], bytes, MPI_BYTE, tensors->rankAfter(-1), 0, MPI_COMM_WORLD, &requests[2 * i]);
        MPI_Isend(from[i], bytes, MPI_BYTE, tensors->rankAfter(1), 0, MPI_COMM_WORLD, &requests[2 * i + 1]);
      }
      if (rounds > 0) compute(rounds);
      MPI_Waitall(static_cast<int>(requests.size()), requests.data(), MPI_STATUSES_IGNORE);
    }
  };
  work.wrong = [tensors, steps] {
    return tensors->wrong(tensors->set(1 + (steps - 1) % 2), tensors->rankAfter(-steps));
  };
  work.timesPerIteration = steps;
  return work;
}

/// MPI_Sendrecv, one tensor after the other.
Work sendrecvWork(const TensorsPointer& tensors) {
  Work work;
  work.prepare = [tensors] { tensors->spoil(); };
  work.run = [tensors] {
    for (size_t i = 0; i < tensors->sizes().size(); ++i) {
      const int bytes = static_cast<int>(tensors->sizes()[i]);
      MPI_Sendrecv(tensors->set(0)[i], bytes, MPI_BYTE, tensors->rankAfter(1), 0, tensors->set(1)[i], bytes, MPI_BYTE,
                   tensors->rankAfter(-1), 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    }
  };
  work.wrong = [tensors] { return tensors->wrong(tensors->set(1), tensors->rankAfter(-1)); };
  return work;
}
#endif

/// The rows of one pattern and size.
class Table {
 public:
  Table(Session& session, int pattern, size_t bytes) : session_(session), pattern_(pattern), bytes_(bytes) {}

  void add(const char* by, Work work) {
    Row row;
    row.bytes = row.count = bytes_;
    row.labels = {nameOf(pattern_, kPatterns), by};
    cases_.push_back({row, std::move(work), {}});
  }

  /// Rows with their time over that of row `reference`.
  std::vector<Row> measure(size_t reference) {
    auto rows = session_.measure(cases_);
    for (Row& row : rows) row.extras = {row.outOfPlace.us / rows[reference].outOfPlace.us, Timing::kNone};
    return rows;
  }

 private:
  Session& session_;
  int pattern_;
  size_t bytes_;
  std::vector<Case> cases_;
};

/// How much of the shorter of two times is gone when both are done at once, in percent.
double hidden(const Row& one, const Row& other, const Row& both) {
  const double saved = one.outOfPlace.us + other.outOfPlace.us - both.outOfPlace.us;
  return 100 * saved / std::min(one.outOfPlace.us, other.outOfPlace.us);
}

void runShift(Session& session, const TensorsPointer& tensors, size_t bytes, seqparStream_t stream) {
  Table table(session, kShift, bytes);
  table.add("seqpar", shiftWork(tensors, stream));
#ifdef SEQPAR_PERF_MPI
  if (session.settings.peers) table.add("sendrecv", sendrecvWork(tensors));
  if (session.settings.peers) table.add("isend", mpiWork(tensors, 1, 0));
#endif
  for (const Row& row : table.measure(0)) session.report.row(row);
}

void runRing(Session& session, [[maybe_unused]] const TensorsPointer& tensors, size_t bytes,
             const std::shared_ptr<OpenRing>& ring) {
  const int steps = session.group.size() - 1;
  Table table(session, kRing, bytes);
  table.add("seqpar", ringWork(ring, steps, 0));
#ifdef SEQPAR_PERF_MPI
  if (session.settings.peers) table.add("isend", mpiWork(tensors, steps, 0));
#endif
  for (const Row& row : table.measure(0)) session.report.row(row);
}

/// Computation that takes as long as the ring alone, the two alone and together.
void runOverlap(Session& session, [[maybe_unused]] const TensorsPointer& tensors, size_t bytes,
                const std::shared_ptr<OpenRing>& ring) {
  const int steps = session.group.size() - 1;
  Table probe(session, kOverlap, bytes);
  probe.add("ring", ringWork(ring, steps, 0));
  const long rounds = roundsFor(probe.measure(0)[0].outOfPlace.us, session.group);
  Table table(session, kOverlap, bytes);
  table.add("compute", computeWork(steps, rounds));
  table.add("ring", ringWork(ring, steps, 0));
  table.add("both", ringWork(ring, steps, rounds));
#ifdef SEQPAR_PERF_MPI
  if (session.settings.peers) table.add("isend", mpiWork(tensors, steps, 0));
  if (session.settings.peers) table.add("isend+c", mpiWork(tensors, steps, rounds));
#endif
  auto rows = table.measure(2);
  rows[2].extras[1] = hidden(rows[0], rows[1], rows[2]);
  if (rows.size() > 3) rows[4].extras[1] = hidden(rows[0], rows[3], rows[4]);
  for (const Row& row : rows) session.report.row(row);
}

void runAll(Session& session, const Options& options) {
  if (session.group.size() < 2) throw std::runtime_error("ring_perf needs at least 2 ranks, but was given 1");
  seqparStream_t stream = nullptr;
  if (!session.settings.blocking) require(seqparStreamCreate(&stream), "seqparStreamCreate");
  const int sets = options.inner == 0 ? kPlainSets : kDoubleSets;
  for (const int pattern : options.patterns) {
    for (const size_t size : session.settings.sizes()) {
      const auto tensors = std::make_shared<Tensors>(size, options.tensors, sets, session.group);
      if (pattern == kShift) {
        runShift(session, tensors, size, stream);
        continue;
      }
      const auto ring = std::make_shared<OpenRing>(tensors, options.inner, stream);
      pattern == kRing ? runRing(session, tensors, size, ring) : runOverlap(session, tensors, size, ring);
      session.group.barrier();
    }
  }
  require(seqparStreamDestroy(stream), "seqparStreamDestroy");
}

}  // namespace
}  // namespace seqpar::perf

int main(int argc, char** argv) {
  using namespace seqpar::perf;
  Options options;
  Program program;
  program.name = "ring_perf";
  program.summary =
      "Tensors that go round a ring; times are of one step. shift: seqparShift to the next rank. ring: nranks - 1 "
      "steps\n"
      "of a seqparRing. overlap: such a ring beside computation that takes as long; hidden is the part of the shorter\n"
      "one of the two that both together do not take.";
  program.addOptions = [&](OptionParser& parser) {
    parser.add('p', "pattern", "NAMES", "shift, ring, overlap or all (all)",
               [&](const std::string& text) { options.patterns = parseNames(text, kPatterns); });
    parser.add(0, "tensors", "N", "tensors that a size is cut into (2)", [&](const std::string& text) {
      options.tensors = static_cast<int>(parseInteger(text, 1, SEQPAR_RING_MOST_TENSORS));
    });
    parser.add(0, "inner", "N", "ranks of an inner ring (0: no double ring)",
               [&](const std::string& text) { options.inner = static_cast<size_t>(parseInteger(text, 0, 1 << 20)); });
  };
  program.checkOptions = [](Settings&) {};
  program.layout = [] {
    return Layout{{{"pattern", "", 8}, {"by", "", 8}}, false, {{"/seqpar", "(x)", 8}, {"hidden", "(%)", 7}}};
  };
  program.body = [&](Session& session) { runAll(session, options); };
  return runProgram(program, argc, argv);
}
