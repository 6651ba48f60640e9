// MESH: Mesh-Attention (arXiv 2512.20968), Algorithm 2 and section 3.6: ranks are a x b, and each attends the queries
// of its Q group to the keys of its KV group, tile by tile, while blocks and partial results rotate in both groups in
// the order of seqpar/mesh.h's schedules. Causal masks are balanced by the layout.
#include <algorithm>
#include <type_traits>

#include "attn/boundary.h"
#include "attn/softmax/base.h"
#include "attn/softmax/local.h"
#include "attn/softmax/mesh_cost.h"
#include "seqpar/mesh.h"

namespace seqpar::attn {
namespace {

constexpr const char* kCaller = "attention plan";

/// A rank's data of a block of queries; #0 is its own.
struct QueryBlock {
  int rank = 0;
  Tensor q, dOut, out;
  Rows lse, delta;  ///< of the whole softmax
  Partial partial;
  Tensor dq;
};

struct KeyBlock {
  int rank = 0;
  Tensor k, v, dk, dv;
};

struct Schedule {
  std::vector<seqparMeshStep_t> steps;
  std::vector<seqparMeshTile_t> tiles;
};

class MeshOperator final : public SoftmaxOperator {
 public:
  MeshOperator(const Problem& problem, Exec& exec) : SoftmaxOperator(problem, exec) {
    const int a = ranksOfQueryGroup(problem), b = problem.ranks() / a, rank = problem.rank();
    queries_.resize(static_cast<size_t>(a));
    keys_.resize(static_cast<size_t>(b));
    for (int u = 0; u < a; ++u) queries_[static_cast<size_t>(u)].rank = rank / a * a + (rank % a + a - u) % a;
    for (int u = 0; u < b; ++u) keys_[static_cast<size_t>(u)].rank = rank % a + a * ((rank / a + b - u) % b);
    for (const auto& query : queries_) {
      for (const auto& key : keys_) {
        rectangles_.push_back(problem.rectangles(query.rank, key.rank));
        block_->expect(rectangles_.back(), problem.queries.tokensOf(query.rank), problem.keys.tokensOf(key.rank));
      }
    }
  }

  void carve(Arena& arena) override {
    const auto& d = problem_.desc;
    const auto type = problem_.type();
    const auto wire = problem_.wireType();
    const bool training = problem_.training();
    block_->carve(arena);
    for (auto& block : queries_) {
      const int64_t tokens = problem_.queries.tokensOf(block.rank);
      block.q = arena.tensor(type, d.batch, tokens, d.heads, d.headDim);
      block.partial = {arena.tensor(seqparFloat32, d.batch, tokens, d.heads, d.valueDim), headsFirst(arena, tokens)};
      if (!training) continue;
      block.dOut = arena.tensor(type, d.batch, tokens, d.heads, d.valueDim);
      if (block_->needsOut()) block.out = arena.tensor(type, d.batch, tokens, d.heads, d.valueDim);
      block.lse = arena.rows(d.batch, d.heads, tokens);
      block.delta = arena.rows(d.batch, d.heads, tokens);
      block.dq = arena.tensor(seqparFloat32, d.batch, tokens, d.heads, d.headDim);
    }
    for (auto& block : keys_) {
      const int64_t tokens = problem_.keys.tokensOf(block.rank);
      block.k = arena.tensor(type, d.batch, tokens, d.kvHeads, d.headDim);
      block.v = arena.tensor(type, d.batch, tokens, d.kvHeads, d.valueDim);
      if (!training) continue;
      block.dk = arena.tensor(seqparFloat32, d.batch, tokens, d.kvHeads, d.headDim);
      block.dv = arena.tensor(seqparFloat32, d.batch, tokens, d.kvHeads, d.valueDim);
    }
    copies_ = {queries_[0].q, keys_[0].k, keys_[0].v, queries_[0].dOut, queries_[0].out};
    const int64_t rows = problem_.queries.longest(), columns = problem_.keys.longest();
    carryO_ = arena.tensor(wire, d.batch, rows, d.heads, std::max(d.valueDim, d.headDim));
    carryLse_ = arena.rows(d.batch, d.heads, rows);
    if (!training) return;
    carryK_ = arena.tensor(wire, d.batch, columns, d.kvHeads, d.headDim);
    carryV_ = arena.tensor(wire, d.batch, columns, d.kvHeads, d.valueDim);
  }

  void open() override {
    block_->prepare();
    const auto& d = problem_.desc;
    const CostModel model(problem_);
    const auto tokens = std::max<int64_t>(1, problem_.queries.longest());
    const double scores = static_cast<double>(tokens) * static_cast<double>(problem_.keys.longest());
    seqparMeshParams_t params = SEQPAR_MESH_PARAMS_INITIALIZER;
    params.tokens = tokens * d.batch;
    params.heads = d.heads;
    params.kvHeads = d.kvHeads;
    params.headDim = d.headDim;
    params.valueDim = d.valueDim;
    params.dataType = problem_.type();
    params.wireType = problem_.wireType();
    params.causal = d.mask == seqparAttnCausal ? 1 : 0;
    params.sendDelta = block_->needsOut() ? 0 : 1;
    params.forwardUs = model.blockUs(scores, false, {});
    params.backwardUs = model.blockUs(scores, true, {});
    seqparMesh_t mesh = nullptr;
    require(seqparMeshCreate(&mesh, a(), b(), &params, problem_.comm), kCaller, problem_.comm);
    mesh_.reset(mesh);
    forward_ = scheduleOf(seqparMeshForward);
    if (problem_.training()) backward_ = scheduleOf(seqparMeshBackward);
  }

  void forward(const seqparAttnForwardArgs_t& args) override {
    loadInputs(blockInputs(problem_, args));
    for (const auto& block : queries_) {
      exec_.zero(block.partial.out);
      clear(exec_, block.partial);
    }
    follow(forward_, [&](const QueryBlock& query, const KeyBlock& key, std::span<const Rectangle> seen) {
      block_->forward({query.q, key.k, key.v}, seen, query.partial);
    });
    if (a() > 1) sendO(0, exec_.main());
    block_->finish(queries_[0].partial, sinks(args.sinks), outTensor(problem_, args.out), lseRows(problem_, args.lse));
  }

  void backward(const seqparAttnBackwardArgs_t& args) override {
    const auto& own = queries_[0];
    loadInputs(blockInputs(problem_, args));
    makeDelta(*block_, args, own.delta);
    queries_[0].dOut = ready(outTensor(problem_, args.dOut), copies_.dOut);
    exec_.copy(own.lse, lseRows(problem_, args.lse));
    if (block_->needsOut()) queries_[0].out = ready(outTensor(problem_, args.out), copies_.out);
    for (const auto& block : queries_) exec_.zero(block.dq);
    for (const auto& block : keys_) {
      exec_.zero(block.dk);
      exec_.zero(block.dv);
    }
    follow(backward_, [&](const QueryBlock& query, const KeyBlock& key, std::span<const Rectangle> seen) {
      block_->backward({query.q, key.k, key.v, query.dOut, query.lse, query.delta, query.out}, seen,
                       {query.dq, key.dk, key.dv});
    });
    if (a() > 1) sendDq(0, exec_.main());
    if (b() > 1) sendDkv(0, exec_.main());
    exec_.copy(queryTensor(problem_, args.dq), own.dq);
    exec_.copy(keyTensor(problem_, args.dk), keys_[0].dk);
    exec_.copy(valueTensor(problem_, args.dv), keys_[0].dv);
  }

 private:
  struct Destroy {
    void operator()(seqparMesh_t mesh) const { seqparMeshDestroy(mesh); }
  };

  int a() const { return static_cast<int>(queries_.size()); }
  int b() const { return static_cast<int>(keys_.size()); }

  /// [heads][batch][tokens], the layout of an lse in the mesh's steps.
  Rows headsFirst(Arena& arena, int64_t tokens) const {
    const auto& d = problem_.desc;
    auto rows = arena.rows(d.batch, d.heads, tokens);
    rows.batchStride = tokens;
    rows.headStride = d.batch * tokens;
    return rows;
  }

  Schedule scheduleOf(int pass) const {
    int steps = 0, tiles = 0;
    require(seqparMeshSchedule(mesh_.get(), pass, nullptr, nullptr, &steps, &tiles), kCaller, problem_.comm);
    Schedule schedule{std::vector<seqparMeshStep_t>(static_cast<size_t>(steps)),
                      std::vector<seqparMeshTile_t>(static_cast<size_t>(tiles))};
    require(seqparMeshSchedule(mesh_.get(), pass, schedule.steps.data(), schedule.tiles.data(), &steps, &tiles),
            kCaller, problem_.comm);
    return schedule;
  }

  void loadInputs(const BlockInputs& given) {
    queries_[0].q = ready(given.q, copies_.q);
    keys_[0].k = ready(given.k, copies_.k);
    keys_[0].v = ready(given.v, copies_.v);
  }

  /// The caller's tensor if it is dense, otherwise a copy in `memory`.
  Tensor ready(const Tensor& given, const Tensor& memory) {
    if (given.dense()) return given;
    exec_.copy(memory, given);
    return memory;
  }

  template <typename Attend>
  void follow(const Schedule& schedule, const Attend& attend) {
    for (const auto& step : schedule.steps) {
      exec_.fork();
      move(step);
      for (int t = 0; t < step.tileCount; ++t) {
        const auto& tile = schedule.tiles[static_cast<size_t>(step.firstTile) + static_cast<size_t>(t)];
        const auto q = static_cast<size_t>(tile.q), kv = static_cast<size_t>(tile.kv);
        const auto& seen = rectangles_[q * keys_.size() + kv];
        if (!seen.empty()) attend(queries_[q], keys_[kv], seen);
      }
      exec_.join();
    }
  }

  void move(const seqparMeshStep_t& step) {
    const auto index = static_cast<size_t>(step.index);
    switch (step.operation) {
      case seqparMeshRecvQ:
        receive(seqparMeshAxisQ, {part(queries_[index - 1].q, queries_[index].q)});
        break;
      case seqparMeshRecvKv:
        receive(seqparMeshAxisKv, {part(keys_[index - 1].k, keys_[index].k), part(keys_[index - 1].v, keys_[index].v)});
        break;
      case seqparMeshRecvOdoq: {
        const auto &from = queries_[index - 1], &to = queries_[index];
        receive(seqparMeshAxisQ, {part(from.q, to.q), part(from.dOut, to.dOut), part(from.lse, to.lse),
                                  block_->needsOut() ? part(from.out, to.out) : part(from.delta, to.delta)});
        break;
      }
      case seqparMeshSendO:
        sendO(step.index, exec_.side());
        break;
      case seqparMeshSendDq:
        sendDq(step.index, exec_.side());
        break;
      case seqparMeshSendDkv:
        sendDkv(step.index, exec_.side());
        break;
      default:
        break;
    }
  }

  template <typename View>
  static seqparMeshPart_t part(const View& from, const View& to) {
    return {from.data, from.bytes(), to.data, to.bytes()};
  }

  void receive(int axis, const std::vector<seqparMeshPart_t>& parts) {
    require(seqparMeshReceive(axis, parts.data(), static_cast<int>(parts.size()), mesh_.get(), exec_.side()), kCaller,
            problem_.comm);
  }

  void sendO(int index, void* stream) {
    const auto& d = problem_.desc;
    const auto& row = queries_[static_cast<size_t>(index)].partial;
    const auto& next = queries_[static_cast<size_t>((index + 1) % a())].partial;
    seqparMeshReduceOParams_t params = SEQPAR_MESH_REDUCE_O_PARAMS_INITIALIZER;
    params.o = row.out.data;
    params.lse = row.lse.data;
    params.carry = carryO_.data;
    params.carryLse = carryLse_.data;
    params.tokens = d.batch * row.out.tokens;
    params.carryTokens = d.batch * next.out.tokens;
    params.heads = d.heads;
    params.dim = d.valueDim;
    params.wireType = problem_.wireType();
    require(seqparMeshReduceO(index, &params, mesh_.get(), stream), kCaller, problem_.comm);
  }

  static seqparMeshSum_t sumOf(const Tensor& sum, const Tensor& next, const Tensor& carry) {
    return {sum.data, static_cast<size_t>(sum.elements()), carry.data, static_cast<size_t>(next.elements())};
  }

  void sendDq(int index, void* stream) {
    const auto& next = queries_[static_cast<size_t>((index + 1) % a())];
    const auto sum = sumOf(queries_[static_cast<size_t>(index)].dq, next.dq, carryO_);
    require(
        seqparMeshReduceSum(seqparMeshAxisQ, index, &sum, 1, seqparFloat32, problem_.wireType(), mesh_.get(), stream),
        kCaller, problem_.comm);
  }

  void sendDkv(int index, void* stream) {
    const auto &block = keys_[static_cast<size_t>(index)], &next = keys_[static_cast<size_t>((index + 1) % b())];
    const seqparMeshSum_t sums[] = {sumOf(block.dk, next.dk, carryK_), sumOf(block.dv, next.dv, carryV_)};
    require(
        seqparMeshReduceSum(seqparMeshAxisKv, index, sums, 2, seqparFloat32, problem_.wireType(), mesh_.get(), stream),
        kCaller, problem_.comm);
  }

  /// Memory for this rank's tensors that are not dense.
  struct Copies {
    Tensor q, k, v, dOut, out;
  };

  std::vector<QueryBlock> queries_;                 ///< [a]
  std::vector<KeyBlock> keys_;                      ///< [b]
  std::vector<std::vector<Rectangle>> rectangles_;  ///< [a][b]
  Copies copies_;
  Tensor carryO_, carryK_, carryV_;  ///< received from the predecessor; carryO_ also for gradients of queries
  Rows carryLse_;
  std::unique_ptr<std::remove_pointer_t<seqparMesh_t>, Destroy> mesh_;
  Schedule forward_, backward_;
};

/// The sum over the tiles of the most scores of a rank: ranks wait for each other at every transfer, as in rings.
double scoresByTile(const CostModel& model, int a, int b) {
  double sum = 0;
  for (int tile = 0; tile < a * b; ++tile) {
    double most = 0;
    for (int rank = 0; rank < a * b; ++rank) {
      const int query = rank / a * a + (rank + tile) % a, key = rank % a + a * ((rank / a + tile / a) % b);
      most = std::max(most, model.scores(query, key));
    }
    sum += most;
  }
  return sum;
}

Estimate estimateMesh(const Problem& problem) {
  const CostModel model(problem);
  const int a = ranksOfQueryGroup(problem), b = problem.ranks() / a;
  const auto bytes = meshBytes(model, a);
  const double scores = scoresByTile(model, a, b);
  const auto ring = [&](int members, double all, int stride) {
    return members < 2 ? 0.0 : (members - 1) * model.ringUs(all / (members - 1), members, stride);
  };
  // Tiles and transfers wait for each other at every step, so little overlaps.
  const auto shape = meshShape(model, a * b);
  return {model.blockUs(scores, false, shape) + ring(a, bytes.q, 1) + ring(b, bytes.kv, a) + ring(a, bytes.out, 1) +
              model.copyUs(bytes.out),
          model.blockUs(scores, true, shape) + ring(a, bytes.gradientInputs, 1) + ring(b, bytes.kv, a) +
              ring(a, bytes.dq, 1) + ring(b, bytes.sums, a) + model.copyUs(bytes.dq + bytes.sums),
          bytes.forward() + bytes.backward()};
}

const RegisteredAlgorithm kMesh({.id = seqparAttnMesh,
                                 .name = "mesh",
                                 .paper = "Mesh-Attention, arXiv 2512.20968, Algorithm 2 and section 3.6",
                                 .ownLayout = balancedLayout,
                                 .estimate = estimateMesh,
                                 .make = makeOrLocal<MeshOperator>});

}  // namespace
}  // namespace seqpar::attn
