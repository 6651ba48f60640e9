// all_scan_perf: All-Scan with every algorithm in nccl-tests' form, with MPI peers on hosts and NCCL peers on GPUs.
#include <cmath>
#include <memory>

#include "common/session.h"
#include "common/values.h"
#include "problem.h"

namespace seqpar::perf {
namespace {

constexpr int kPipeBlocks = 16;  ///< of the pipelined peer, if neither -K nor the model chooses

const Names kOps{
    {"sum", seqparScanSum}, {"scalar", seqparScanScalar}, {"diag", seqparScanDiag}, {"matrix", seqparScanMatrix}};
const Names kDirections{{"forward", seqparForward}, {"reverse", seqparReverse}};
const Names kOutputs{{"prefix", static_cast<int>(Outputs::Prefix)},
                     {"total", static_cast<int>(Outputs::Total)},
                     {"both", static_cast<int>(Outputs::Both)}};

Names algorithmNames() {
  Names names;
  for (int algorithm = seqparScanAuto; algorithm <= SEQPAR_SCAN_ALGORITHMS; ++algorithm) {
    names.emplace_back(seqparScanAlgorithmName(algorithm), algorithm);
  }
  return names;
}

struct ScanSettings {
  std::vector<int> types{seqparFloat32};
  std::vector<int> ops{seqparScanDiag};
  std::vector<int> directions{seqparForward};
  std::vector<int> algorithms{seqparScanAuto};
  Outputs outputs = Outputs::Prefix;
  int wire = -1;  ///< -1: the state's type
  int blocks = 0;
  ShapeRequest shape;

  void addTo(OptionParser& parser);
  void check(const Settings& settings) const;
};

void ScanSettings::addTo(OptionParser& parser) {
  const auto length = [](size_t& field) {
    return [&field](const std::string& text) { field = static_cast<size_t>(parseInteger(text, 1, 1 << 20)); };
  };
  parser.add('d', "datatype", "TYPES", "float, half, bfloat16 or all (float)",
             [this](const std::string& text) { types = parseNames(text, typeNames()); });
  parser.add('o', "op", "OPS", "sum, scalar, diag, matrix or all (diag)",
             [this](const std::string& text) { ops = parseNames(text, kOps); });
  parser.add('A', "algo", "NAMES", "algorithms, a row for each: auto, chain, ... or all (auto)",
             [this](const std::string& text) { algorithms = parseNames(text, algorithmNames()); });
  parser.add(0, "direction", "NAMES", "forward, reverse or all (forward)",
             [this](const std::string& text) { directions = parseNames(text, kDirections); });
  parser.add(0, "blocks", "N", "blocks to cut the state into; 0: the model's choice (0)",
             [this](const std::string& text) { blocks = static_cast<int>(parseInteger(text, 0, 1 << 20)); });
  parser.add(0, "heads", "N", "heads (as many as fit the size); with it, dv is the largest that fits",
             length(shape.heads));
  parser.add(0, "dk", "N", "rows of a head's state (128, fewer below one head)", length(shape.dk));
  parser.add(0, "dv", "N", "columns of a head's state (128, fewer below one row)", length(shape.dv));
  Names wires = typeNames();
  wires.insert(wires.begin(), {"same", -1});
  parser.addName(0, "wire", "type of states on the wire: same, float, half or bfloat16 (same)", wires, wire);
  parser.add(0, "outputs", "NAME", "prefix, total or both (prefix)",
             [this](const std::string& text) { outputs = static_cast<Outputs>(parseName(text, kOutputs)); });
}

void ScanSettings::check(const Settings& settings) const {
  for (const int type : types) static_cast<void>(shapeFor(settings.minBytes / bytesOf(type), shape));
}

Layout layout() {
  return {{{"type", "", 8, InPlot::Panel},
           {"op", "", 6, InPlot::Panel},
           {"dir", "", 7, InPlot::Panel},
           {"algo", "", 11},
           {"K", "", 4, InPlot::Nothing},
           {"shape", "", 14, InPlot::Nothing}},
          true,
          {{"model", "(us)", 9}, {"eff", "(%)", 7}, {"/auto", "(x)", 7}}};
}

/// The rows of one problem, with the model's times.
class Comparison {
 public:
  Comparison(Session& session, std::shared_ptr<Problem> problem) : session_(session), problem_(std::move(problem)) {}

  void addAlgorithm(int algorithm, int blocks);
  void addPeers(int blocks, Nccl* nccl);
  /// Adds the limits by the measured link: of a chain, and of any algorithm.
  void addLimits();
  /// Measures and prints.
  void run();

 private:
  Row rowFor(const std::string& algorithm, int blocks) const;
  void addPeer(Peer peer);

  Session& session_;
  std::shared_ptr<Problem> problem_;
  std::vector<Case> cases_;
  std::vector<double> modelUs_;
  std::vector<Row> limits_;
  size_t autoRow_ = static_cast<size_t>(-1);
  int chainBlocks_ = 0;
};

Row Comparison::rowFor(const std::string& algorithm, int blocks) const {
  const seqparAllScanParams_t& params = problem_->params();
  Row row;
  row.bytes = problem_->bytes();
  row.count = problem_->count();
  const auto text = [](int64_t number) { return std::to_string(number); };
  row.labels = {
      nameOf(params.stateType, typeNames()), nameOf(params.op, kOps),
      nameOf(params.direction, kDirections), algorithm,
      blocks > 0 ? text(blocks) : "-",       text(params.heads) + "x" + text(params.dk) + "x" + text(params.dv)};
  return row;
}

void Comparison::addAlgorithm(int algorithm, int blocks) {
  seqparAllScanParams_t params = problem_->params();
  params.algorithm = algorithm;
  params.blocks = blocks;
  seqparScanEstimate_t estimates[SEQPAR_SCAN_ALGORITHMS + 1];
  require(seqparAllScanPlan(&params, problem_->comm(), estimates), "seqparAllScanPlan", problem_->comm());
  for (const seqparScanEstimate_t& estimate : estimates) {
    if (estimate.algorithm == seqparScanChain) chainBlocks_ = estimate.blocks;
  }
  const std::string name = seqparScanAlgorithmName(algorithm);
  const std::string chosen = seqparScanAlgorithmName(estimates[0].algorithm);
  if (!std::isfinite(estimates[0].modelUs)) {
    session_.report.note(name + " cannot do " + rowFor(name, 0).labels.back() + " here: no row");
    return;
  }
  if (algorithm == seqparScanAuto) autoRow_ = cases_.size();
  Row row = rowFor(algorithm == seqparScanAuto ? "a:" + chosen : name, estimates[0].blocks);
  row.series = name;
  cases_.push_back({row, libraryWork(problem_, algorithm, blocks, false, session_.stream),
                    libraryWork(problem_, algorithm, blocks, true, session_.stream)});
  modelUs_.push_back(estimates[0].modelUs);
}

void Comparison::addPeer(Peer peer) {
  Row row = rowFor(peer.name, peer.blocks);
  row.kind = RowKind::Peer;
  row.series = peer.name + (peer.blocks > 0 ? ", K = " + std::to_string(peer.blocks) : "");
  cases_.push_back({row, std::move(peer.outOfPlace), std::move(peer.inPlace)});
  modelUs_.push_back(Timing::kNone);
}

void Comparison::addPeers([[maybe_unused]] int blocks, [[maybe_unused]] Nccl* nccl) {
  if (problem_->params().stateType != seqparFloat32) {
    session_.report.note("the peers support float only: no peer rows");
    return;
  }
#ifdef SEQPAR_PERF_CUDA
  if (nccl != nullptr) {
    for (Peer& peer : makeGpuPeers(problem_, session_.group, *nccl)) addPeer(std::move(peer));
  }
#endif
#ifdef SEQPAR_PERF_MPI
  if (session_.settings.gpu) return;
  const int pipeBlocks = blocks > 0 ? blocks : chainBlocks_ > 1 ? chainBlocks_ : kPipeBlocks;
  for (Peer& peer : makePeers(problem_, pipeBlocks)) addPeer(std::move(peer));
#endif
}

void Comparison::addLimits() {
  const LinkLimits link = session_.group.gpu() == nullptr ? LinkLimits{} : session_.group.gpu()->limits();
  if (link.bandwidth == 0) return;
  const auto add = [&](const char* name, const char* series, int hops) {
    Row row = rowFor(name, 0);
    row.kind = RowKind::Limit;
    row.series = series;
    row.outOfPlace.us = static_cast<double>(problem_->bytes()) / link.bandwidth * 1e6 + hops * link.alphaUs;
    limits_.push_back(row);
  };
  const int hops = session_.group.size() - 1;
  add("limit:chain", "a chain: m/B + (P-1) alpha", hops);
  if (hops > 1) add("limit:any", "any algorithm: m/B + alpha", 1);
}

void Comparison::run() {
  std::vector<Row> rows = session_.measure(cases_);
  modelUs_.resize(rows.size() + limits_.size(), Timing::kNone);
  rows.insert(rows.end(), limits_.begin(), limits_.end());
  for (size_t i = 0; i < rows.size(); ++i) {
    const double us = rows[i].outOfPlace.us;
    const double relative = autoRow_ < rows.size() ? us / rows[autoRow_].outOfPlace.us : Timing::kNone;
    rows[i].extras = {modelUs_[i], 100 * modelUs_[i] / us, relative};
    session_.report.row(rows[i]);
  }
}

void runAll(Session& session, const ScanSettings& scan) {
  std::unique_ptr<Nccl> nccl;
  if (session.settings.peers && session.settings.gpu) {
    std::string reason;
    nccl = makeNccl(session.group, reason);
    session.report.note(nccl ? "NCCL " + nccl->version() : "no NCCL peers: " + reason);
  }
  seqparAllScanParams_t params = SEQPAR_ALL_SCAN_PARAMS_INITIALIZER;
  for (const int type : scan.types) {
    for (const int op : scan.ops) {
      for (const int direction : scan.directions) {
        for (const size_t size : session.settings.sizes()) {
          const Shape shape = shapeFor(size / bytesOf(type), scan.shape);
          params.op = op;
          params.bounded = op == seqparScanMatrix ? 0 : 1;  // products of the factors are at most 2
          params.direction = direction;
          params.heads = static_cast<int64_t>(shape.heads);
          params.dk = static_cast<int64_t>(shape.dk);
          params.dv = static_cast<int64_t>(shape.dv);
          params.stateType = type;
          params.wireType = scan.wire < 0 ? type : scan.wire;
          Comparison comparison(session, std::make_shared<Problem>(params, scan.outputs, session.group));
          for (const int algorithm : scan.algorithms) comparison.addAlgorithm(algorithm, scan.blocks);
          if (session.settings.peers) {
            comparison.addPeers(scan.blocks, nccl.get());
            comparison.addLimits();
          }
          comparison.run();
        }
      }
    }
  }
}

}  // namespace
}  // namespace seqpar::perf

int main(int argc, char** argv) {
  using namespace seqpar::perf;
  ScanSettings scan;
  Program program;
  program.name = "all_scan_perf";
  program.knowsGpus = true;
  program.summary =
      "All-Scan: bandwidth and latency. Sizes are bytes of one rank's state. algbw = busbw = size / time, because\n"
      "every link carries the state once. The model's time is for one separate scan: compare it with -B.";
  program.addOptions = [&](OptionParser& parser) { scan.addTo(parser); };
  program.checkOptions = [&](Settings& settings) { scan.check(settings); };
  program.layout = layout;
  program.body = [&](Session& session) { runAll(session, scan); };
  return runProgram(program, argc, argv);
}
