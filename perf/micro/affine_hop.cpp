// micro_affine_hop: one rank's hop of a scan, x -> A x + S, compared with memcpy of equal traffic.
#include <cstring>
#include <memory>
#include <vector>

#include "base/convert.h"
#include "base/simd.h"
#include "common/values.h"
#include "part.h"
#include "scan/affine/affine.h"

namespace seqpar::perf {
namespace {

constexpr size_t kDk = 64, kDv = 128;
constexpr const char* kOpNames[] = {"sum", "scalar", "diag", "matrix"};

/// One rank's map and its operand, in separate memory. States are 1, factors 1/2.
class Hop {
 public:
  Hop(seqparScanOp_t op, seqparDataType_t state, seqparDataType_t wire, size_t heads, size_t dk, size_t dv, bool prefix)
      : stateBytes_(heads * dk * dv * sizeOf(state)),
        wireBytes_(heads * dk * dv * sizeOf(wire)),
        transition_(op == seqparScanMatrix ? heads * dk * dk : heads * dk, 0.5F),
        memory_(3 * stateBytes_ + 2 * wireBytes_) {
    std::byte* next = memory_.data();
    const auto take = [&](size_t bytes) { return std::exchange(next, next + bytes); };
    const std::vector<float> ones(heads * dk * dv, 1.0F);
    problem_.op = op;
    problem_.heads = heads;
    problem_.dk = dk;
    problem_.dv = dv;
    problem_.stateType = state;
    problem_.wireType = wire;
    problem_.headFlags.assign(heads, 0);
    std::byte* const states = take(stateBytes_);
    fromFloat(ones.data(), states, state, ones.size());
    problem_.state = states;
    problem_.transition = op == seqparScanSum ? nullptr : transition_.data();
    problem_.total = take(stateBytes_);
    if (prefix) problem_.prefix = take(stateBytes_);
    std::byte* const incoming = take(wireBytes_);
    fromFloat(ones.data(), incoming, wire, ones.size());
    x_ = {incoming, wire};
    sent_ = take(wireBytes_);
    map_ = makeAffine(problem_);
  }
  Hop(const Hop&) = delete;
  Hop& operator=(const Hop&) = delete;

  void run() { map_->hop(map_->split(1).front(), x_, sent_); }
  /// Bytes read and written, without A.
  size_t bytes() const { return (problem_.prefix == nullptr ? 2 : 3) * stateBytes_ + 2 * wireBytes_; }
  size_t elements() const { return problem_.elements(); }

 private:
  size_t stateBytes_, wireBytes_;
  std::vector<float> transition_;
  std::vector<std::byte> memory_;
  ScanProblem problem_;
  std::unique_ptr<Affine> map_;
  Values x_{};
  std::byte* sent_ = nullptr;
};

/// Two rows: the hop, and memcpy of half of its bytes, which reads and writes equal traffic.
void measure(Session& session, seqparScanOp_t op, seqparDataType_t state, seqparDataType_t wire, size_t heads,
             size_t dk, size_t dv, bool prefix) {
  const auto hop = std::make_shared<Hop>(op, state, wire, heads, dk, dv, prefix);
  Row row;
  row.bytes = hop->bytes();
  row.count = hop->elements();
  row.labels = {kOpNames[op], nameOf(state, typeNames()), nameOf(wire, typeNames()), prefix ? "both" : "total", "hop"};
  std::vector<Case> cases{{row, partWork([hop] { hop->run(); }), {}}};
  const auto from = std::make_shared<std::vector<std::byte>>(row.bytes / 2, std::byte{1});
  const auto to = std::make_shared<std::vector<std::byte>>(row.bytes / 2);
  row.labels.back() = "memcpy";
  cases.push_back({row, partWork([=] { std::memcpy(to->data(), from->data(), to->size()); }), {}});
  for (const Row& measured : measureTogether(session, cases, RowKind::Peer)) session.report.row(measured);
}

void runAll(Session& session) {
  session.report.note(std::string("kernels: ") + isaName(bestIsa()));
  constexpr std::pair<seqparDataType_t, seqparDataType_t> kTypes[] = {{seqparFloat32, seqparFloat32},
                                                                      {seqparFloat32, seqparBfloat16},
                                                                      {seqparBfloat16, seqparBfloat16},
                                                                      {seqparFloat16, seqparFloat16}};
  for (const size_t size : session.settings.sizes()) {
    for (const seqparScanOp_t op : {seqparScanSum, seqparScanScalar, seqparScanDiag}) {
      for (const auto& [state, wire] : kTypes) {
        const size_t heads = std::max<size_t>(1, size / sizeOf(state) / (kDk * kDv));
        for (const bool prefix : {false, true}) measure(session, op, state, wire, heads, kDk, kDv, prefix);
      }
    }
    for (const seqparDataType_t type : {seqparFloat32, seqparBfloat16, seqparFloat16}) {
      const size_t heads = std::max<size_t>(1, size / sizeOf(type) / (kDv * kDv));
      measure(session, seqparScanMatrix, type, type, heads, kDv, kDv, true);
    }
  }
}

}  // namespace
}  // namespace seqpar::perf

int main(int argc, char** argv) {
  using namespace seqpar::perf;
  Program program = partProgram("micro_affine_hop",
                                "One rank's hop of a scan, compared with memcpy. SIZE is the state; a row's size "
                                "counts all bytes read and written.",
                                {{"op", "", 7, InPlot::Panel},
                                 {"state", "", 9, InPlot::Panel},
                                 {"wire", "", 9, InPlot::Panel},
                                 {"outputs", "", 8, InPlot::Panel},
                                 {"by", "", 7}},
                                {{"of memcpy", "(%)", 10}}, false, runAll);
  program.defaultBytes = 1 << 20;
  return runProgram(program, argc, argv);
}
