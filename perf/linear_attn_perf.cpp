// linear_attn_perf: linear attention through a plan, forward and backward, with every algorithm; LOCAL exchanges
// nothing.
#include <algorithm>
#include <cmath>
#include <memory>
#include <string_view>

#include "attn/layer.h"
#include "attn/models.h"
#include "common/values.h"

namespace seqpar::perf {
namespace {

/// The families of linear attention by their names.
Names familyNames() {
  Names names;
  for (int i = 0; i < SEQPAR_ATTN_FAMILIES; ++i) {
    seqparAttnFamilyInfo_t info = SEQPAR_ATTN_FAMILY_INFO_INITIALIZER;
    if (seqparAttnFamilyQuery(i, &info) == seqparSuccess) names.emplace_back(info.name, i);
  }
  return names;
}
const Names kFamilies = familyNames();
const Names kAlgorithms{
    {"local", seqparAttnLocal}, {"zeco", seqparAttnZeco}, {"lasp1", seqparAttnLasp1}, {"lasp2", seqparAttnLasp2}};
const Names kModels = modelNames();
const Names kGateTypes{{"float", seqparFloat32}, {"bfloat16", seqparBfloat16}};
struct Choices {
  std::vector<int> families{seqparAttnGla};
  std::vector<int> algorithms{seqparAttnLocal, seqparAttnZeco, seqparAttnLasp1, seqparAttnLasp2};
  std::vector<int> passes{kForward, kBackward, kStep};
  size_t batch = 1, packed = 0, heads = 8, keyHeads = 0, keyDim = 128, valueDim = 0;
  std::vector<int> types{seqparFloat32};
  int type = seqparFloat32;  ///< the current one of `types`
  int gateType = seqparFloat32, wireType = seqparFloat32;
  double gateNormalizer = kGateNormalizer;
  bool reserve = false, inputGate = false;
  int model = -1;      ///< index into modelShapes()
  bool drawn = false;  ///< decays were asked for by --gate-normalizer
  Decays decays = Decays::Drawn;
};

/// Takes family, heads, dimensions and decays from the model.
void useModel(Choices& c) {
  const Choices none;
  if (c.families != none.families || c.heads != none.heads || c.keyHeads != none.keyHeads || c.keyDim != none.keyDim ||
      c.valueDim != none.valueDim) {
    throw UsageError(
        "option --model: sets --family, --heads, --kv-heads, --head-dim and --value-dim; expected none of them");
  }
  const auto& shape = modelShapes()[static_cast<size_t>(c.model)];
  c.families = {shape.family};
  c.heads = shape.heads;
  c.keyHeads = shape.keyHeads;
  c.keyDim = shape.keyDim;
  c.valueDim = shape.valueDim;
  if (!c.drawn) c.decays = shape.decays;
}

seqparAttnFamilyInfo_t infoOf(int family) {
  seqparAttnFamilyInfo_t info = SEQPAR_ATTN_FAMILY_INFO_INITIALIZER;
  requireAttn(seqparAttnFamilyQuery(family, &info), "seqparAttnFamilyQuery");
  return info;
}

/// Elements of a rank with this many tokens.
LayerSizes sizesOf(const Choices& c, int family, size_t tokens) {
  const size_t rows = c.batch * tokens;
  const size_t keys = rows * c.keyHeads * c.keyDim, values = rows * c.heads * c.valueDim;
  LayerSizes sizes{keys, keys, values, values};
  const auto info = infoOf(family);
  for (int i = 0; i < info.gates; ++i) {
    const int shape = info.gateShapes[i];
    sizes.betas[static_cast<size_t>(i)] = std::string_view(info.gateNames[i]) == "beta";
    sizes.gates[static_cast<size_t>(i)] =
        c.heads * (shape == seqparAttnGatePerHead ? 1 : rows) * (shape == seqparAttnGatePerChannel ? c.keyDim : 1);
  }
  if (c.inputGate) {
    sizes.betas[static_cast<size_t>(info.gates)] = true;
    sizes.gates[static_cast<size_t>(info.gates)] = c.heads * rows;
  }
  sizes.saved = c.batch * c.heads * c.keyDim * c.valueDim;
  sizes.type = c.type;
  sizes.gateType = c.gateType;
  sizes.gateNormalizer = c.gateNormalizer;
  if (c.decays != Decays::Drawn) {
    sizes.decays = [kind = c.decays, heads = c.heads](size_t count, unsigned seed) {
      return initialDecays(kind, count / heads, heads, seed);
    };
  }
  return sizes;
}

/// Starts of the packed sequences, of about equal lengths.
std::vector<int64_t> startsOf(const Choices& c, int64_t tokens) {
  std::vector<int64_t> starts;
  const auto count = static_cast<int64_t>(c.packed);
  for (int64_t i = 0; count > 0 && i <= count; ++i) starts.push_back(i * tokens / count);
  return starts;
}

seqparAttnDesc_t descOf(const Choices& c, int family, int algorithm, int64_t tokens,
                        const std::vector<int64_t>& starts) {
  seqparAttnDesc_t desc = SEQPAR_ATTN_DESC_INITIALIZER;
  desc.family = family;
  desc.algorithm = algorithm;
  desc.batch = static_cast<int64_t>(c.batch);
  desc.tokens = tokens;
  desc.heads = static_cast<int64_t>(c.heads);
  desc.kvHeads = static_cast<int64_t>(c.keyHeads);
  desc.headDim = static_cast<int64_t>(c.keyDim);
  desc.valueDim = static_cast<int64_t>(c.valueDim);
  desc.dataType = c.type;
  std::fill_n(desc.gateTypes, SEQPAR_ATTN_MAX_GATES, c.gateType);
  desc.wireType = c.wireType;
  desc.reserve = c.reserve ? 2 : 0;
  desc.inputGate = c.inputGate ? 1 : 0;
  desc.sequences = static_cast<int64_t>(c.packed);
  desc.cuSeqlens = starts.empty() ? nullptr : starts.data();
  desc.normalize = infoOf(family).transition == seqparScanMatrix ? 1 : 0;  // keys of any length would let states grow
  return desc;
}

/// Flops of the matrix products in chunks of 64 tokens, on one rank.
double flopsOf(const Choices& c, int family, size_t tokens, int pass) {
  const auto dk = static_cast<double>(c.keyDim), dv = static_cast<double>(c.valueDim), chunk = 64.0;
  double forward = 2 * chunk * (dk + dv) + 4 * dk * dv;
  double backward = chunk * (6 * dk + 4 * dv) + 12 * dk * dv;
  if (infoOf(family).transition == seqparScanMatrix) {
    forward = 4 * chunk * (dk + dv) + 6 * dk * dv;
    backward = 14 * chunk * (dk + dv) + 24 * dk * dv;
  }
  return static_cast<double>(c.batch * tokens * c.heads) * (pass == kForward    ? forward
                                                            : pass == kBackward ? backward
                                                                                : forward + backward);
}

void measureShape(Session& session, const Choices& c, int family, size_t tokens) {
  const auto layer = std::make_shared<Layer>(sizesOf(c, family, tokens), session.group);
  const int64_t allTokens = static_cast<int64_t>(tokens) * session.group.size();
  const std::vector<int64_t> starts = startsOf(c, allTokens);
  for (const int pass : c.passes) {
    std::vector<Case> cases;
    for (const int algorithm : c.algorithms) {
      // On one rank all algorithms are equal.
      if (session.group.size() == 1 && algorithm != c.algorithms.front()) continue;
      const auto plan = std::make_shared<LayerPlan>(descOf(c, family, algorithm, allTokens, starts), session.group);
      Row row;
      row.bytes = layer->minimalBytes(static_cast<Pass>(pass));
      row.count = tokens;
      row.labels = {nameOf(c.type, typeNames()), nameOf(family, kFamilies), nameOf(pass, passNames()),
                    nameOf(algorithm, kAlgorithms)};
      cases.push_back({row, passWork(plan, layer, static_cast<Pass>(pass), session.stream), {}});
    }
    auto rows = session.measure(cases);
    double local = std::nan("");
    for (size_t i = 0; i < rows.size(); ++i) {
      if (c.algorithms[i] == seqparAttnLocal) local = rows[i].outOfPlace.us;
    }
    for (auto& row : rows) {
      const double us = row.outOfPlace.us;
      row.extras = {flopsOf(c, family, tokens, pass) / us * 1e-3, (us / local - 1) * 100, us - local};
      session.report.row(row);
    }
  }
}

void runAll(Session& session, const Choices& choices) {
  forEachSize(session, choices.families, [&](int family, size_t size) {
    measureShape(session, choices, family,
                 tokensFor(size, choices.batch * choices.keyHeads * choices.keyDim * bytesOf(choices.type)));
  });
}

}  // namespace
}  // namespace seqpar::perf

int main(int argc, char** argv) {
  using namespace seqpar::perf;
  Choices choices;
  Program program;
  program.name = "linear_attn_perf";
  program.summary =
      "Linear attention over a sequence that is sharded across the ranks, with several algorithms in turns. SIZE is\n"
      "the size of a rank's queries, count its tokens. The size column and the bandwidths are for the minimal memory\n"
      "traffic of a pass: its inputs once and its outputs once. GFLOP/s count matrix products in chunks of 64\n"
      "tokens. LOCAL exchanges nothing; the additional time of other algorithms is exposed communication.";
  program.defaultBytes = 2 << 20;
  program.knowsGpus = true;
  program.hasPeers = false;
  program.layout = [] {
    return Layout{{{"type", "", 8, InPlot::Panel}, {"family", "", 11, InPlot::Panel}, {"pass", "", 9}, {"by", "", 6}},
                  false,
                  {{"rate", "(GF/s)", 9}, {"over", "(%)", 8}, {"exposed", "(us)", 10}}};
  };
  program.addOptions = [&](OptionParser& parser) {
    std::string families;
    for (const auto& family : kFamilies) families += family.first + ", ";
    parser.addNames('F', "family", families + "or all (gla)", kFamilies, choices.families);
    parser.addNames('A', "algo", "local, zeco, lasp1, lasp2 or all (all)", kAlgorithms, choices.algorithms);
    parser.addNames(0, "pass", "forward, backward, step (both) or all (all)", passNames(), choices.passes);
    parser.addCount(0, "batch", "sequences (1)", 1 << 20, choices.batch);
    parser.addCount(0, "packed", "packed sequences of equal lengths, instead of --batch (none)", 1 << 20,
                    choices.packed);
    parser.addCount(0, "heads", "heads of values (8)", 1 << 20, choices.heads);
    parser.addCount(0, "kv-heads", "heads of queries and keys, a divisor of --heads (as many)", 1 << 20,
                    choices.keyHeads);
    parser.addCount(0, "head-dim", "length of a query (128)", 1 << 20, choices.keyDim);
    parser.addCount(0, "value-dim", "length of a value (as a query)", 1 << 20, choices.valueDim);
    parser.addNames('d', "datatype", "float, half, bfloat16 or all (float)", typeNames(), choices.types);
    parser.addName(0, "model",
                   "family, heads, dimensions and decays at initialization of a published model's layer: see the\n"
                   "README; --gate-normalizer selects drawn decays instead",
                   kModels, choices.model);
    parser.addName(0, "gates", "type of the decays: float or bfloat16 (float)", kGateTypes, choices.gateType);
    parser.add(0, "gate-normalizer", "X",
               "divides the log-decays, which are logarithms of values between 1/4 and 1: 16 as in GLA's models,\n"
               "1 for strong decays (16)",
               [&](const std::string& text) {
                 choices.gateNormalizer = parseNumber(text, 1e-3, 1e6);
                 choices.drawn = true;
               });
    parser.add(0, "reserve", "", "plans that keep the forward's states for backward, on GPUs",
               [&](const std::string&) { choices.reserve = true; });
    parser.add(0, "input-gate", "", "with an input gate, as Mamba-2 has: gla, scalar, fixed and sum",
               [&](const std::string&) { choices.inputGate = true; });
    parser.addName(0, "wire", "float, half or bfloat16 (float)", typeNames(), choices.wireType);
  };
  program.checkOptions = [&](Settings&) {
    if (choices.model >= 0) useModel(choices);
    choices.keyHeads =
        static_cast<size_t>(keyHeadsOf(static_cast<long>(choices.heads), static_cast<long>(choices.keyHeads)));
    if (choices.valueDim == 0) choices.valueDim = choices.keyDim;
  };
  program.body = [&](Session& session) { forEachType(choices, [&](const Choices& one) { runAll(session, one); }); };
  return runProgram(program, argc, argv);
}
