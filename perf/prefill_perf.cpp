// prefill_perf: a chunk of chunked prefill. New tokens of several requests attend to a paged KV cache that is
// distributed over the ranks.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <numeric>
#include <random>

#include "attn/layer.h"
#include "common/values.h"

namespace seqpar::perf {
namespace {

const Names kAlgorithms{{"auto", seqparAttnAuto},
                        {"ring", seqparAttnRing},
                        {"ring_pass_q", seqparAttnRingPassQ},
                        {"allgather_kv", seqparAttnAllGatherKv},
                        {"mesh", seqparAttnMesh},
                        {"attention2d", seqparAttnAttention2d}};
enum Order { kAscending, kShuffled };
const Names kOrders{{"ascending", kAscending}, {"shuffled", kShuffled}};

struct Choices {
  std::vector<int> algorithms{seqparAttnRing, seqparAttnRingPassQ,   seqparAttnAllGatherKv,
                              seqparAttnMesh, seqparAttnAttention2d, seqparAttnAuto};
  std::vector<int> orders{kAscending, kShuffled};
  std::vector<int> types{seqparBfloat16};
  int type = seqparBfloat16;  ///< the current one of `types`
  size_t requests = 4, fresh = 512, page = 256;
  size_t heads = 32, kvHeads = 8, headDim = 128;
};

/// Requests of unequal lengths in pages that are dealt to the ranks in turn; the columns of a rank's pages are in order
/// of positions, or of a random pool.
class Chunk {
 public:
  Chunk(const Choices& c, int order, size_t keysOfRank, int ranks) {
    const auto page = static_cast<int64_t>(c.page), parts = static_cast<int64_t>(c.requests * (c.requests + 1) / 2);
    const int64_t pages = std::max<int64_t>(1, static_cast<int64_t>(keysOfRank) / page) * ranks;
    if (pages < static_cast<int64_t>(c.requests))
      throw UsageError("option -b: " + std::to_string(pages) + " pages of " + std::to_string(c.page) +
                       " keys on all ranks, expected at least one for each of " + std::to_string(c.requests) +
                       " requests");
    for (size_t r = 0; r < c.requests; ++r) {
      const bool last = r + 1 == c.requests;
      const int64_t before = static_cast<int64_t>(pages_.size());
      const int64_t count = last ? pages - before : std::max<int64_t>(1, pages * static_cast<int64_t>(r + 1) / parts);
      for (int64_t i = 0; i < count; ++i) pages_.push_back({0, static_cast<int64_t>(r), i * page, page});
      lengths_.push_back(count * page);
      const int64_t fresh = std::min(static_cast<int64_t>(c.fresh), lengths_.back());
      cuQueries_.push_back(cuQueries_.back() + fresh);
      scores_ += static_cast<double>(fresh) * static_cast<double>(lengths_.back() - fresh) +
                 static_cast<double>(fresh) * static_cast<double>(fresh + 1) / 2;
    }
    for (size_t i = 0; i < pages_.size(); ++i) owners_.push_back(static_cast<int>(i) % ranks);
    if (order == kShuffled) {
      std::mt19937_64 random(1);
      std::shuffle(pages_.begin(), pages_.end(), random);
    }
    for (size_t i = 0; i < pages_.size(); ++i) {
      pages_[i].column = bounds_.back();
      bounds_.push_back(bounds_.back() + page);
    }
    slices_.resize(pages_.size());
    int64_t count = 0;
    requireAttn(
        seqparAttnPageSlices(cuQueries_.data(), lengths_.data(), static_cast<int64_t>(lengths_.size()), pages_.data(),
                             static_cast<int64_t>(pages_.size()), SEQPAR_ATTN_NO_WINDOW, slices_.data(), &count),
        "seqparAttnPageSlices");
    slices_.resize(static_cast<size_t>(count));
    queries_.ranks = keys_.ranks = ranks;
    queries_.kind = seqparContiguous;
    queries_.tokens = cuQueries_.back();
    keys_.kind = seqparPieces;
    keys_.tokens = bounds_.back();
    keys_.pieces = static_cast<int64_t>(owners_.size());
    keys_.pieceBounds = bounds_.data();
    keys_.pieceOwners = owners_.data();
  }
  Chunk(const Chunk&) = delete;
  Chunk& operator=(const Chunk&) = delete;
  ~Chunk() = default;

  seqparAttnDesc_t desc(const Choices& c, int algorithm) const {
    seqparAttnDesc_t desc = SEQPAR_ATTN_DESC_INITIALIZER;
    desc.algorithm = algorithm;
    desc.tokens = queries_.tokens;
    desc.layout = &queries_;
    desc.kvTokens = keys_.tokens;
    desc.kvLayout = &keys_;
    desc.heads = static_cast<int64_t>(c.heads);
    desc.kvHeads = static_cast<int64_t>(c.kvHeads);
    desc.headDim = static_cast<int64_t>(c.headDim);
    desc.dataType = c.type;
    desc.training = 0;
    desc.slices = static_cast<int64_t>(slices_.size());
    desc.slice = slices_.data();
    return desc;
  }
  LayerSizes sizes(const Choices& c, int rank) const {
    const auto queries = static_cast<size_t>(lengthOf(queries_, rank)),
               keys = static_cast<size_t>(lengthOf(keys_, rank));
    LayerSizes sizes{queries * c.heads * c.headDim, keys * c.kvHeads * c.headDim, keys * c.kvHeads * c.headDim,
                     queries * c.heads * c.headDim};
    sizes.lse = queries * c.heads;
    sizes.type = c.type;
    return sizes;
  }
  double scores() const { return scores_; }
  size_t slices() const { return slices_.size(); }
  size_t keys() const { return static_cast<size_t>(keys_.tokens); }

 private:
  static int64_t lengthOf(const seqparLayout_t& layout, int rank) {
    int64_t length = 0;
    if (seqparLayoutLocalLength(&layout, rank, &length) != seqparSuccess) throw std::runtime_error("a wrong layout");
    return length;
  }

  std::vector<seqparAttnPage_t> pages_;
  std::vector<int64_t> cuQueries_{0}, lengths_, bounds_{0};
  std::vector<int> owners_;
  std::vector<seqparAttnSlice_t> slices_;
  seqparLayout_t queries_ = SEQPAR_LAYOUT_INITIALIZER, keys_ = SEQPAR_LAYOUT_INITIALIZER;
  double scores_ = 0;  ///< visible, of one head
};

void measure(Session& session, const Choices& c, int order, size_t keysOfRank) {
  const Chunk chunk(c, order, keysOfRank, session.group.size());
  const auto layer = std::make_shared<Layer>(chunk.sizes(c, session.group.rank()), session.group);
  for (const int algorithm : c.algorithms) {
    std::shared_ptr<LayerPlan> plan;
    double ms = 0;
    try {
      for (int i = 0; i < 2; ++i) {  // the first one may load kernels
        plan.reset();
        session.group.barrier();
        const auto begin = std::chrono::steady_clock::now();
        plan = std::make_shared<LayerPlan>(chunk.desc(c, algorithm), session.group);
        ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
      }
    } catch (const std::exception& error) {
      session.report.note(nameOf(algorithm, kAlgorithms) + ": " + error.what());
      continue;
    }
    const auto expected = plan->expectation();
    Row row;
    row.bytes = keysOfRank * c.kvHeads * c.headDim * bytesOf(c.type);
    row.count = chunk.keys();
    const std::string name = (algorithm == seqparAttnAuto ? "a:" : "") + expected.algorithm;
    row.labels = {nameOf(c.type, typeNames()), nameOf(order, kOrders), name};
    std::vector<Case> cases{{row, passWork(plan, layer, kForward, session.stream), {}}};
    row = session.measure(cases).front();
    const double flops = 4 * chunk.scores() * static_cast<double>(c.heads * c.headDim) / session.group.size();
    row.extras = {flops / row.outOfPlace.us * 1e-6, expected.forwardUs, expected.bytes * 0x1p-20, ms,
                  static_cast<double>(chunk.slices())};
    session.report.row(row);
  }
}

Layout layoutOf() {
  return {{{"type", "", 8, InPlot::Panel}, {"pages", "", 9, InPlot::Panel}, {"by", "", 14}},
          false,
          {{"rate", "(TF/s)", 9}, {"model", "(us)", 9}, {"sent", "(MiB)", 9}, {"plan", "(ms)", 9}, {"slices", "", 7}}};
}

}  // namespace
}  // namespace seqpar::perf

int main(int argc, char** argv) {
  using namespace seqpar::perf;
  Choices choices;
  Program program;
  program.name = "prefill_perf";
  program.summary =
      "A chunk of chunked prefill: causal attention of new tokens of several requests of unequal lengths to a paged "
      "KV\n"
      "cache. SIZE is the size of a rank's keys, count the keys of all ranks. Pages are dealt to the ranks in turn, "
      "and\n"
      "queries in equal shards. TFLOP/s are per rank, for visible scores; model and sent are the cost model's; plan "
      "is\n"
      "the time to create and prepare the plan of a chunk.";
  program.defaultBytes = 8 << 20;
  program.knowsGpus = true;
  program.hasPeers = false;
  program.layout = layoutOf;
  program.addOptions = [&](OptionParser& parser) {
    parser.addNames('A', "algo", "ring, ring_pass_q, allgather_kv, mesh, attention2d, auto or all\n(all)", kAlgorithms,
                    choices.algorithms);
    parser.addNames(0, "pages", "order of the pages in a rank's memory: ascending, shuffled or all (all)", kOrders,
                    choices.orders);
    parser.addCount(0, "requests", "requests of the batch (4)", 1 << 10, choices.requests);
    parser.addCount(0, "new", "new tokens of a request (512)", 1 << 20, choices.fresh);
    parser.addCount(0, "page", "tokens of a page (256)", 1 << 20, choices.page);
    parser.addCount(0, "heads", "heads of queries (32)", 1 << 20, choices.heads);
    parser.addCount(0, "kv-heads", "heads of keys and values, a divisor of --heads (8)", 1 << 20, choices.kvHeads);
    parser.addCount(0, "head-dim", "length of a query and of a value (128)", 1 << 20, choices.headDim);
    parser.addNames('d', "datatype", "float, half, bfloat16 or all (bfloat16)", typeNames(), choices.types);
  };
  program.body = [&](Session& session) {
    forEachType(choices, [&](const Choices& one) {
      const size_t token = one.kvHeads * one.headDim * bytesOf(one.type);
      for (const size_t size : session.settings.sizes()) {
        for (const int order : one.orders) measure(session, one, order, tokensFor(size, token));
      }
    });
  };
  return runProgram(program, argc, argv);
}
