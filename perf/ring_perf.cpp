// ring_perf: tensors that are passed around a ring, alone and overlapped with computation; peers by MPI on hosts, by
// NCCL and the copy engine on GPUs.
#include <algorithm>
#include <memory>
#include <vector>

#include "exchange/exchange.h"
#include "ring/works.h"

namespace seqpar::perf {
namespace {

enum Pattern { kShift, kRing, kOverlap };
const Names kPatterns{{"shift", kShift}, {"ring", kRing}, {"overlap", kOverlap}};

struct Options {
  std::vector<int> patterns{kShift, kRing, kOverlap};
  int tensors = 2;
  size_t inner = 0;
};

/// The percentage of the shorter of two times that running both concurrently saves.
double hidden(const Row& one, const Row& other, const Row& both) {
  const double saved = one.outOfPlace.us + other.outOfPlace.us - both.outOfPlace.us;
  return 100 * saved / std::min(one.outOfPlace.us, other.outOfPlace.us);
}

/// The rows of one pattern and size.
class Table {
 public:
  Table(Session& session, int pattern, size_t bytes) : session_(session), pattern_(pattern), bytes_(bytes) {}

  void add(const char* by, Work work, RowKind kind = RowKind::Library) {
    Row row;
    row.bytes = row.count = bytes_;
    row.labels = {nameOf(pattern_, kPatterns), by};
    row.kind = kind;
    cases_.push_back({row, std::move(work), {}});
  }

  /// Rows with their time over that of row `reference`.
  std::vector<Row> measure(size_t reference) {
    auto rows = session_.measure(cases_);
    for (Row& row : rows) row.extras = {row.outOfPlace.us / rows[reference].outOfPlace.us, Timing::kNone};
    return rows;
  }

  void print(size_t reference) {
    for (const Row& row : measure(reference)) session_.report.row(row);
  }

 private:
  Session& session_;
  int pattern_;
  size_t bytes_;
  std::vector<Case> cases_;
};

/// All patterns of one size.
class Comparison {
 public:
  Comparison(Session& session, const Options& options, size_t bytes, std::shared_ptr<Nccl> nccl)
      : session_(session),
        options_(options),
        bytes_(bytes),
        steps_(session.group.size() - 1),
        nccl_(std::move(nccl)),
        tensors_(std::make_shared<Tensors>(bytes, options.tensors, options.inner == 0 ? kPlainSets : kDoubleSets,
                                           session.group)) {}

  void run(int pattern) {
    Table table(session_, pattern, bytes_);
    switch (pattern) {
      case kShift:
        return runShift(table);
      case kRing:
        return runRing(table);
      default:
        return runOverlap(table);
    }
  }

 private:
  bool onGpu() const { return session_.group.gpu() != nullptr; }
  bool withMpi() const { return session_.settings.peers && !onGpu(); }

  void runShift(Table& table) {
    table.add("seqpar", shiftWork(tensors_, session_.stream));
    addGpuPeers(table, 1);
#ifdef SEQPAR_PERF_MPI
    if (withMpi()) table.add("sendrecv", sendrecvWork(tensors_), RowKind::Peer);
    if (withMpi()) table.add("isend", mpiWork(tensors_, 1, 0), RowKind::Peer);
#endif
    table.print(0);
  }

  void runRing(Table& table) {
    table.add("seqpar", ringWork(open(onGpu()), steps_, 0));
    if (onGpu()) table.add("buffers", ringWork(open(false), steps_, 0));
    addGpuPeers(table, steps_);
#ifdef SEQPAR_PERF_MPI
    if (withMpi()) table.add("isend", mpiWork(tensors_, steps_, 0), RowKind::Peer);
#endif
    table.print(0);
  }

  /// Computation that takes as long as the ring alone; then both alone and overlapped.
  void runOverlap(Table& table) {
    const auto ring = open(onGpu());
    Table probe(session_, kOverlap, bytes_);
    probe.add("ring", ringWork(ring, steps_, 0));
    const long rounds = roundsFor(probe.measure(0)[0].outOfPlace.us, session_);
    table.add("compute", computeWork(session_, steps_, rounds));
    table.add("ring", ringWork(ring, steps_, 0));
    table.add("both", ringWork(ring, steps_, rounds));
    if (onGpu()) {
      const auto buffers = open(false);
      table.add("buffers", ringWork(buffers, steps_, 0));
      table.add("buffs+c", ringWork(buffers, steps_, rounds));
    }
#ifdef SEQPAR_PERF_MPI
    if (withMpi()) table.add("isend", mpiWork(tensors_, steps_, 0), RowKind::Peer);
    if (withMpi()) table.add("isend+c", mpiWork(tensors_, steps_, rounds), RowKind::Peer);
#endif
    auto rows = table.measure(2);
    rows[2].extras[1] = hidden(rows[0], rows[1], rows[2]);
    if (rows.size() > 3) rows[4].extras[1] = hidden(rows[0], rows[3], rows[4]);
    for (const Row& row : rows) session_.report.row(row);
  }

  void addGpuPeers(Table& table, int steps) {
    if (nccl_ != nullptr) table.add("nccl", ncclWork(tensors_, steps, nccl_), RowKind::Peer);
    if (!session_.settings.peers || !onGpu()) return;
    Work copy = copyWork(tensors_, *session_.group.gpu());
    if (copy.run) table.add("copy", std::move(copy), RowKind::Limit);
  }

  std::shared_ptr<OpenRing> open(bool ownMemory) {
    auto ring = std::make_shared<OpenRing>(tensors_, options_.inner, ownMemory, session_);
    if (onGpu()) {
      const auto info = ring->info();
      session_.report.note(std::string(ownMemory ? "ring of " : "ring in the caller's buffers, ") +
                           std::to_string(bytes_) + " bytes: " + info.engine + ": " + info.reason);
    }
    return ring;
  }

  Session& session_;
  const Options& options_;
  size_t bytes_;
  int steps_;
  std::shared_ptr<Nccl> nccl_;
  TensorsPointer tensors_;
};

void runAll(Session& session, const Options& options) {
  const auto nccl = ncclPeer(session);
  forEachSize(session, options.patterns, [&](int pattern, size_t size) {
    Comparison(session, options, size, nccl).run(pattern);
    session.group.barrier();
  });
}

}  // namespace
}  // namespace seqpar::perf

int main(int argc, char** argv) {
  using namespace seqpar::perf;
  Options options;
  Program program;
  program.name = "ring_perf";
  program.leastRanks = 2;
  program.knowsGpus = true;
  program.summary =
      "Tensors that are passed around a ring; times are of one step. shift: seqparShift to the next rank. ring:\n"
      "nranks - 1 steps of a seqparRing, on GPUs in library memory, and in the caller's (buffers). overlap: such a\n"
      "ring concurrent with computation that takes as long; hidden is the part of the shorter time that the overlap\n"
      "saves.";
  program.addOptions = [&](OptionParser& parser) {
    parser.add(0, "pattern", "NAMES", "shift, ring, overlap or all (all)",
               [&](const std::string& text) { options.patterns = parseNames(text, kPatterns); });
    parser.add(0, "tensors", "N", "number of tensors that share a size (2)", [&](const std::string& text) {
      options.tensors = static_cast<int>(parseInteger(text, 1, SEQPAR_RING_MOST_TENSORS));
    });
    parser.add(0, "inner", "N", "ranks of an inner ring (0: no double ring)",
               [&](const std::string& text) { options.inner = static_cast<size_t>(parseInteger(text, 0, 1 << 20)); });
  };
  program.checkOptions = [](Settings&) {};
  program.layout = [] {
    return Layout{
        {{"pattern", "", 8, InPlot::Panel}, {"by", "", 8}}, false, {{"/seqpar", "(x)", 8}, {"hidden", "(%)", 7}}};
  };
  program.body = [&](Session& session) { runAll(session, options); };
  return runProgram(program, argc, argv);
}
