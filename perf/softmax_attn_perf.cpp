// softmax_attn_perf: softmax attention through a plan, forward and backward, with every algorithm; LOCAL exchanges
// nothing.
#include <algorithm>
#include <array>
#include <cmath>
#include <memory>

#include "attn/layer.h"
#include "attn/reference.h"
#include "attn/solo.h"
#include "common/memory_use.h"
#include "common/values.h"
#include "slice_masks.h"

namespace seqpar::perf {
namespace {

/// The algorithms of softmax attention by their names, including AUTO.
Names algorithmNames() {
  Names names;
  for (int i = 0; i < SEQPAR_ATTN_ALGORITHMS; ++i) {
    const char* name = seqparAttnAlgorithmName(i);
    if (name != nullptr && i != seqparAttnZeco && i != seqparAttnLasp1 && i != seqparAttnLasp2)
      names.emplace_back(name, i);
  }
  return names;
}
const Names kAlgorithms = algorithmNames();

struct Choices {
  std::vector<int> masks{seqparAttnFull, seqparAttnCausal}, passes{kForward, kStep};
  std::vector<int> algorithms{seqparAttnLocal, seqparAttnRing, seqparAttnZigzag, seqparAttnAllGatherKv,
                              seqparAttnUlysses};
  size_t batch = 1, heads = 32, kvHeads = 0, headDim = 128;
  size_t window = 0, documents = 0;  ///< 0: none
  std::vector<int> types{seqparBfloat16};
  int type = seqparBfloat16;  ///< the current one of `types`
  int wireType = seqparFloat32;
  bool ideal = false, alone = false, balance = false, reserve = false;
  size_t error = 0;  ///< key heads to compare with the reference; 0: none
};

constexpr size_t kLeastDocument = 512;  ///< tokens

/// Documents of `least` to `most` tokens from a fixed seed, equal on all ranks.
std::vector<int64_t> documentsOf(int64_t tokens, int64_t least, int64_t most) {
  std::vector<int64_t> bounds{0};
  unsigned state = 1;
  while (bounds.back() < tokens) {
    state = state * 1664525u + 1013904223u;
    const double share = static_cast<double>(state >> 8) * 0x1p-24;
    const auto length =
        static_cast<int64_t>(std::exp(std::log(static_cast<double>(least)) +
                                      share * std::log(static_cast<double>(most) / static_cast<double>(least))));
    bounds.push_back(std::min(tokens, bounds.back() + length));
  }
  return bounds;
}

/// Visible scores of one head, over all ranks.
double scoresOf(const SoftmaxProblem& problem) {
  double all = 0;
  for (int64_t token = 0; token < problem.bounds.back(); ++token) {
    const auto range = problem.keysOf(token);
    all += static_cast<double>(range.end - range.first);
  }
  return all;
}

/// Elements of a rank with this many tokens.
LayerSizes sizesOf(const Choices& c, size_t tokens) {
  const size_t queries = c.batch * tokens * c.heads * c.headDim, keys = c.batch * tokens * c.kvHeads * c.headDim;
  LayerSizes sizes{queries, keys, keys, queries};
  sizes.lse = c.batch * tokens * c.heads;
  sizes.type = c.type;
  return sizes;
}

/// Contiguous shards of about equal work.
std::vector<int64_t> lengthsOf(const SoftmaxProblem& problem, int ranks) {
  const double all = scoresOf(problem);
  std::vector<int64_t> lengths(static_cast<size_t>(ranks), 0);
  double before = 0;
  for (int64_t token = 0; token < problem.bounds.back(); ++token) {
    ++lengths[static_cast<size_t>(before / all * ranks)];
    const auto range = problem.keysOf(token);
    before += static_cast<double>(range.end - range.first);
  }
  return lengths;
}

/// `bounds` must outlive the creation of the plan.
seqparAttnDesc_t descOf(const Choices& c, int mask, int algorithm, int64_t tokens, const std::vector<int64_t>& bounds) {
  seqparAttnDesc_t desc = SEQPAR_ATTN_DESC_INITIALIZER;
  desc.algorithm = algorithm;
  desc.batch = static_cast<int64_t>(c.batch);
  desc.tokens = tokens;
  desc.heads = static_cast<int64_t>(c.heads);
  desc.kvHeads = static_cast<int64_t>(c.kvHeads);
  desc.headDim = static_cast<int64_t>(c.headDim);
  desc.dataType = c.type;
  desc.wireType = c.wireType;
  desc.mask = mask;
  desc.reserve = c.reserve ? 1 : 0;
  if (c.window > 0) desc.windowLeft = static_cast<int64_t>(c.window);
  if (c.documents > 0) {
    desc.sequences = static_cast<int64_t>(bounds.size()) - 1;
    desc.cuSeqlens = bounds.data();
  }
  return desc;
}

SoftmaxProblem problemOf(const Choices& c, int mask, int64_t tokens) {
  SoftmaxProblem problem{c.batch, c.heads, c.kvHeads, c.headDim, mask == seqparAttnCausal, c.window, {0, tokens}};
  if (c.documents > 0) problem.bounds = documentsOf(tokens, int64_t{kLeastDocument}, static_cast<int64_t>(c.documents));
  return problem;
}

/// A caller's kernel that computes nothing, so that only the plan's transfers and merges remain.
seqparAttnKernel_t blankKernel() {
  seqparAttnKernel_t kernel = SEQPAR_ATTN_KERNEL_INITIALIZER;
  kernel.forward = kernel.backward = [](void*, const seqparAttnTile_t*, void*) { return 0; };
  return kernel;
}

/// The common state of all rows of one mask and length.
class Shape {
 public:
  Shape(Session& session, const Choices& choices, int mask, size_t tokens)
      : session_(session),
        c_(choices),
        mask_(mask),
        tokens_(tokens),
        all_(static_cast<int64_t>(tokens) * session.group.size()),
        problem_(problemOf(choices, mask, all_)),
        slices_(slicesOf(mask, all_)),
        solved_(slices_, all_, session.group.size()),
        lengths_(choices.balance ? lengthsOf(problem_, session.group.size()) : std::vector<int64_t>()),
        layer_(std::make_shared<Layer>(sizesOf(choices, ownTokens()), session.group)) {
    double scores = slices_.empty() ? scoresOf(problem_) : 0;
    for (const auto& load : solved_.loads) scores += static_cast<double>(load.scores);
    flops_ = 4 * scores * static_cast<double>(c_.batch * c_.heads * c_.headDim) / session.group.size();
  }

  /// The time of one GPU, or of one rank's threads, for all of the work, divided by the ranks.
  void measureIdeal() {
    SoloGroup solo(session_.group);
    const auto layer = std::make_shared<Layer>(sizesOf(c_, static_cast<size_t>(all_)), solo);
    const auto plan = std::make_shared<LayerPlan>(desc(seqparAttnLocal), solo);
    for (const int pass : c_.passes) {
      auto work = passWork(plan, layer, static_cast<Pass>(pass), session_.stream);
      work.timesPerIteration = session_.group.size();
      auto row = measure(pass, "ideal", work);
      row.kind = RowKind::Limit;
      ideal_[static_cast<size_t>(pass)] = row.outOfPlace.us;
      row.extras = extras(pass, row.outOfPlace.us);
      session_.report.row(row);
    }
  }

  void measureAlgorithm(int algorithm) {
    std::shared_ptr<LayerPlan> plan, blank;
    size_t before = 0;
    try {
      auto given = desc(algorithm);
      if (c_.balance) given.tokensOfRanks = lengths_.data();
      if (!slices_.empty()) given.layout = &solved_.layout;
      if (c_.alone) blank = withoutWork(given);
      before = inUse();
      plan = std::make_shared<LayerPlan>(given, session_.group);
    } catch (const std::exception& error) {
      session_.report.note(nameOf(algorithm, kAlgorithms) + ": " + error.what());
      return;
    }
    const auto expected = plan->expectation();
    session_.report.note(nameOf(algorithm, kAlgorithms) + ": blocks by " + expected.block);
    const std::string name = (algorithm == seqparAttnAuto ? "a:" : "") + expected.algorithm;
    // LOCAL attends to a rank's own tokens only.
    const bool partly = algorithm == seqparAttnLocal && session_.group.size() > 1;
    for (const int p : c_.passes) {
      const auto pass = static_cast<Pass>(p);
      double alone = std::nan("");
      if (blank) {
        auto work = passWork(blank, layer_, pass, session_.stream);
        work.wrong = [] { return size_t{0}; };
        alone = measure(pass, name, work).outOfPlace.us;
      }
      auto row = measure(pass, name, passWork(plan, layer_, pass, session_.stream));
      row.extras = extras(pass, partly ? std::nan("") : row.outOfPlace.us);
      row.extras[kWorkspace] = megabytes(static_cast<double>(plan->workspace()));
      row.extras[kMemory] = megabytes(mostOf(static_cast<double>(inUse()) - static_cast<double>(before)));
      row.extras[kModel] = expected.us(pass);
      if (pass == kStep) row.extras[kSent] = megabytes(expected.bytes);
      if (c_.alone) row.extras.push_back(alone);
      if (c_.error > 0) addError(row.extras, pass, plan, partly);
      session_.report.row(row);
    }
  }

 private:
  enum Extra { kRate, kWorkspace, kMemory, kModel, kSent, kFixed };

  /// The whole problem, without a layout.
  seqparAttnDesc_t desc(int algorithm) const {
    auto given = descOf(c_, slices_.empty() ? mask_ : seqparAttnFull, algorithm, all_, problem_.bounds);
    given.slices = static_cast<int64_t>(slices_.size());
    given.slice = slices_.data();
    return given;
  }

  std::shared_ptr<LayerPlan> withoutWork(seqparAttnDesc_t desc) const {
    const auto kernel = blankKernel();
    desc.kernel = &kernel;
    return std::make_shared<LayerPlan>(desc, session_.group);
  }

  static double megabytes(double bytes) { return bytes * 0x1p-20; }
  double mostOf(double mine) const {
    const auto all = session_.group.gather(std::span<const double>(&mine, 1));
    return *std::max_element(all.begin(), all.end());
  }
  size_t inUse() const {
    session_.group.barrier();
    const size_t bytes = memoryInUse(session_.group);
    session_.group.barrier();
    return bytes;
  }

  size_t ownTokens() const {
    if (!slices_.empty()) return static_cast<size_t>(solved_.loads[static_cast<size_t>(session_.group.rank())].tokens);
    return lengths_.empty() ? tokens_ : static_cast<size_t>(lengths_[static_cast<size_t>(session_.group.rank())]);
  }

  Row measure(int pass, const std::string& name, const Work& work) {
    Row row;
    row.bytes = tokens_ * (layer_->queryBytes() / std::max<size_t>(1, ownTokens()));
    row.count = tokens_;
    row.labels = {nameOf(c_.type, typeNames()), nameOf(mask_, kMasks), nameOf(pass, passNames()), name};
    std::vector<Case> cases{{row, work, {}}};
    return session_.measure(cases).front();
  }

  /// The extra columns of all rows. `us` NaN: the row is not for the whole problem.
  std::vector<double> extras(int pass, double us) const {
    const double times = pass == kForward ? 1 : pass == kBackward ? 2.5 : 3.5;
    std::vector<double> extras(kFixed, std::nan(""));
    extras[kRate] = times * flops_ / us * 1e-6;
    if (!c_.ideal) return extras;
    const double ideal = ideal_[static_cast<size_t>(pass)];
    extras.insert(extras.end(), {100 * ideal / us, us < ideal ? 0 : us - ideal});
    return extras;
  }

  /// Errors of a separate step.
  void addError(std::vector<double>& extras, Pass pass, const std::shared_ptr<LayerPlan>& plan, bool partly) {
    constexpr double kMillion = 1e6;
    RelativeError error{std::nan(""), std::nan("")};
    if (!partly) {
      const auto work = passWork(plan, layer_, kStep, session_.stream);
      work.prepare();
      session_.group.barrier();
      work.run();
      session_.wait();
      error = errorOf(problem_, *plan, *layer_, session_.group, c_.error);
    }
    extras.insert(extras.end(), {kMillion * error.out, pass == kForward ? std::nan("") : kMillion * error.gradients});
  }

  Session& session_;
  const Choices& c_;
  int mask_;
  size_t tokens_;
  int64_t all_;
  SoftmaxProblem problem_;
  attn::perf::Slices slices_;
  SolvedLayout solved_;
  std::vector<int64_t> lengths_;  ///< of the ranks' shards, if they differ
  std::shared_ptr<Layer> layer_;
  double flops_ = 0;               ///< of a rank's forward pass
  std::array<double, 3> ideal_{};  ///< us, by Pass
};

void runAll(Session& session, const Choices& choices) {
  for (const size_t size : session.settings.sizes()) {
    const size_t token = choices.batch * choices.heads * choices.headDim * bytesOf(choices.type);
    for (const int mask : choices.masks) {
      Shape shape(session, choices, mask, tokensFor(size, token));
      if (choices.ideal) shape.measureIdeal();
      for (const int algorithm : choices.algorithms) shape.measureAlgorithm(algorithm);
    }
  }
}

Layout layoutOf(const Choices& c) {
  Layout layout{{{"type", "", 8, InPlot::Panel}, {"mask", "", 13, InPlot::Panel}, {"pass", "", 9}, {"by", "", 19}},
                false,
                {{"rate", "(TF/s)", 9},
                 {"workspace", "(MiB)", 10},
                 {"memory", "(MiB)", 9},
                 {"model", "(us)", 9},
                 {"sent", "(MiB)", 9}}};
  const auto add = [&](std::initializer_list<Column> columns) { layout.extras.insert(layout.extras.end(), columns); };
  if (c.ideal) add({{"ideal", "(%)", 7}, {"exposed", "(us)", 9}});
  if (c.alone) add({{"alone", "(us)", 9}});
  if (c.error > 0) add({{"error", "(1e-6)", 9}, {"gradients", "(1e-6)", 9}});
  return layout;
}

}  // namespace
}  // namespace seqpar::perf

int main(int argc, char** argv) {
  using namespace seqpar::perf;
  Choices choices;
  Program program;
  program.name = "softmax_attn_perf";
  program.summary =
      "Softmax attention over a sequence that is sharded across the ranks, with several algorithms. SIZE is the size\n"
      "of a rank's queries, count its tokens. TFLOP/s are per rank, for visible scores. workspace is the plan's\n"
      "workspace, memory the plan's increase of memory in use on the GPU, or in the process; model and sent are the\n"
      "cost model's.";
  program.defaultBytes = 2 << 20;
  program.knowsGpus = true;
  program.hasPeers = false;
  program.layout = [&] { return layoutOf(choices); };
  program.addOptions = [&](OptionParser& parser) {
    parser.addNames('A', "algo", "names of algorithms or all (local, ring, zigzag, allgather_kv, ulysses)", kAlgorithms,
                    choices.algorithms);
    parser.addNames(0, "mask",
                    "full, causal, the masks of slices packed, prefix-lm, video, shared-prefix, or all (full, causal)",
                    kMasks, choices.masks);
    parser.addNames(0, "pass", "forward, backward, step (both) or all (forward, step)", passNames(), choices.passes);
    parser.addCount(0, "batch", "sequences (1)", 1 << 20, choices.batch);
    parser.addCount(0, "heads", "heads of queries (32)", 1 << 20, choices.heads);
    parser.addCount(0, "kv-heads", "heads of keys and values, a divisor of --heads (as many)", 1 << 20,
                    choices.kvHeads);
    parser.addCount(0, "head-dim", "length of a query and of a value (128)", 1 << 20, choices.headDim);
    parser.addCount(0, "window", "tokens before its own that a token sees (all)", 1 << 30, choices.window);
    parser.addCount(0, "documents", "packed sequences of 512 to this many tokens (one sequence)", 1 << 30,
                    choices.documents);
    parser.addNames('d', "datatype", "float, half, bfloat16 or all (bfloat16)", typeNames(), choices.types);
    parser.add(0, "balance", "", "contiguous shards of equal work instead of equal lengths",
               [&](const std::string&) { choices.balance = true; });
    parser.add(0, "reserve", "", "plans that keep forward's exchanged data for backward, if supported",
               [&](const std::string&) { choices.reserve = true; });
    parser.add(0, "ideal", "",
               "one rank's time for all of the work, divided by the ranks; and a row's exposed time beyond it",
               [&](const std::string&) { choices.ideal = true; });
    parser.add(0, "alone", "", "the time of transfers and merges, with a block kernel that computes nothing",
               [&](const std::string&) { choices.alone = true; });
    parser.addCount(0, "error",
                    "number of key heads: relative errors against fp64, root mean square (none; takes tokens^2)",
                    1 << 20, choices.error);
    parser.addName(0, "wire", "of partial results: float, half or bfloat16 (float)", typeNames(), choices.wireType);
  };
  program.checkOptions = [&](Settings&) {
    choices.kvHeads =
        static_cast<size_t>(keyHeadsOf(static_cast<long>(choices.heads), static_cast<long>(choices.kvHeads)));
    const bool sliced =
        std::any_of(choices.masks.begin(), choices.masks.end(), [](int mask) { return mask >= kPacked; });
    if (sliced && (choices.balance || choices.error > 0 || choices.documents > 0)) {
      throw UsageError("option --mask: masks of slices have no --balance, --error and --documents");
    }
    if (choices.documents > 0 && choices.documents < kLeastDocument) {
      throw UsageError("option --documents: '" + std::to_string(choices.documents) + "' is less than " +
                       std::to_string(kLeastDocument) + ", the least tokens of a sequence");
    }
    if (choices.balance && choices.error > 0) throw UsageError("option --error: needs shards of equal lengths");
  };
  program.body = [&](Session& session) { forEachType(choices, [&](const Choices& one) { runAll(session, one); }); };
  return runProgram(program, argc, argv);
}
