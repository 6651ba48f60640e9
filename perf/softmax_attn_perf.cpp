// softmax_attn_perf: softmax attention through a plan, forward and backward, by every algorithm beside LOCAL, which
// exchanges nothing.
#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>

#include "attn/layer.h"
#include "common/values.h"

namespace seqpar::perf {
namespace {

const Names kMasks{{"full", seqparAttnFull}, {"causal", seqparAttnCausal}};

/// The algorithms of softmax attention by their names, AUTO included.
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
  int type = seqparBfloat16;  ///< of `types`, the one in turn
  int wireType = seqparFloat32;
};

/// Documents of `least` to `most` tokens, drawn from a fixed seed, alike on all ranks.
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

/// Scores that are seen, over all ranks, of one head.
double scoresOf(const Choices& c, int mask, const std::vector<int64_t>& bounds) {
  double all = 0;
  for (size_t i = 0; i + 1 < bounds.size(); ++i) {
    const auto length = static_cast<double>(bounds[i + 1] - bounds[i]);
    if (mask == seqparAttnFull) {
      all += length * length;
      continue;
    }
    const double window = c.window == 0 ? length : std::min(length, static_cast<double>(c.window) + 1);
    all += window * (window + 1) / 2 + (length - window) * window;
  }
  return all;
}

/// Elements of a rank with that many tokens.
LayerSizes sizesOf(const Choices& c, size_t tokens) {
  const size_t queries = c.batch * tokens * c.heads * c.headDim, keys = c.batch * tokens * c.kvHeads * c.headDim;
  LayerSizes sizes{queries, keys, keys, queries};
  sizes.lse = c.batch * tokens * c.heads;
  sizes.type = c.type;
  return sizes;
}

/// `bounds` has to live until the plan is made.
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
  if (c.window > 0) desc.windowLeft = static_cast<int64_t>(c.window);
  if (c.documents > 0) {
    desc.sequences = static_cast<int64_t>(bounds.size()) - 1;
    desc.cuSeqlens = bounds.data();
  }
  return desc;
}

void measureShape(Session& session, const Choices& c, int mask, size_t tokens) {
  const int ranks = session.group.size();
  const auto layer = std::make_shared<Layer>(sizesOf(c, tokens), session.group);
  for (const int algorithm : c.algorithms) {
    // LOCAL attends to a rank's own tokens only. On one rank it does all of the work.
    const bool local = algorithm == seqparAttnLocal;
    const auto all = static_cast<int64_t>(tokens) * ranks;
    const auto bounds =
        c.documents > 0 ? documentsOf(all, 512, static_cast<int64_t>(c.documents)) : std::vector<int64_t>{0, all};
    std::shared_ptr<LayerPlan> plan;
    try {
      plan = std::make_shared<LayerPlan>(descOf(c, mask, algorithm, all, bounds), session.group);
    } catch (const std::exception& error) {
      session.report.note(nameOf(algorithm, kAlgorithms) + ": " + error.what());
      continue;
    }
    for (const int pass : c.passes) {
      const double forward = 4 * scoresOf(c, mask, bounds) * static_cast<double>(c.batch * c.heads * c.headDim) / ranks;
      const double flops = local && ranks > 1 ? std::nan("")
                                              : forward * (pass == kForward    ? 1
                                                           : pass == kBackward ? 2.5
                                                                               : 3.5);
      Row row;
      row.bytes = layer->queryBytes();
      row.count = tokens;
      row.labels = {nameOf(c.type, typeNames()), nameOf(mask, kMasks), nameOf(pass, passNames()),
                    nameOf(algorithm, kAlgorithms)};
      std::vector<Case> cases;
      cases.push_back({row, passWork(plan, layer, static_cast<Pass>(pass), session.stream), {}});
      for (auto& measured : session.measure(cases)) {
        measured.extras = {flops / measured.outOfPlace.us * 1e-6, static_cast<double>(plan->workspace()) * 0x1p-20};
        session.report.row(measured);
      }
    }
  }
}

void runAll(Session& session, const Choices& choices) {
  for (const size_t size : session.settings.sizes()) {
    const size_t token = choices.batch * choices.heads * choices.headDim * bytesOf(choices.type);
    for (const int mask : choices.masks) measureShape(session, choices, mask, tokensFor(size, token));
  }
}

}  // namespace
}  // namespace seqpar::perf

int main(int argc, char** argv) {
  using namespace seqpar::perf;
  Choices choices;
  Program program;
  program.name = "softmax_attn_perf";
  program.summary =
      "Softmax attention over a sequence that is sharded across the ranks, by several algorithms. SIZE is that of a\n"
      "rank's queries, count its tokens. TFLOP/s are a rank's, of the scores that are seen. The ideal is the time of\n"
      "-t 1 with all tokens, divided by the ranks.";
  program.defaultBytes = 2 << 20;
  program.knowsGpus = true;
  program.layout = [] {
    return Layout{{{"type", "", 8, InPlot::Panel}, {"mask", "", 7, InPlot::Panel}, {"pass", "", 9}, {"by", "", 14}},
                  false,
                  {{"rate", "(TF/s)", 9}, {"workspace", "(MiB)", 10}}};
  };
  program.addOptions = [&](OptionParser& parser) {
    parser.addNames(0, "algo", "names of algorithms or all (local, ring, zigzag, allgather_kv, ulysses)", kAlgorithms,
                    choices.algorithms);
    parser.addNames(0, "mask", "full, causal or all (all)", kMasks, choices.masks);
    parser.addNames(0, "pass", "forward, backward, step (both) or all (forward, step)", passNames(), choices.passes);
    parser.addCount(0, "batch", "sequences (1)", 1 << 20, choices.batch);
    parser.addCount(0, "heads", "heads of queries (32)", 1 << 20, choices.heads);
    parser.addCount(0, "kv-heads", "heads of keys and values (as many)", 1 << 20, choices.kvHeads);
    parser.addCount(0, "head-dim", "length of a query and of a value (128)", 1 << 20, choices.headDim);
    parser.addCount(0, "window", "tokens before its own that a token sees (all)", 1 << 30, choices.window);
    parser.addCount(0, "documents", "packed sequences of 512 to so many tokens (one sequence)", 1 << 30,
                    choices.documents);
    parser.addNames('d', "datatype", "float, half, bfloat16 or all (bfloat16)", typeNames(), choices.types);
    parser.addName(0, "wire", "of partial results: float, half or bfloat16 (float)", typeNames(), choices.wireType);
  };
  program.checkOptions = [&](Settings&) {
    if (choices.kvHeads == 0) choices.kvHeads = choices.heads;
  };
  program.body = [&](Session& session) { forEachType(choices, [&](const Choices& one) { runAll(session, one); }); };
  return runProgram(program, argc, argv);
}
