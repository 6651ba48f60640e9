#include "mesh_runner.h"

#include <algorithm>
#include <limits>
#include <optional>

#include "base/convert.h"

namespace seqpar::test {
namespace {

/// One rank's mesh and all of its buffers.
class Runner {
 public:
  explicit Runner(const MeshPart& part)
      : comm_(part.comm), mesh_(part.mesh), attention_(part.attention), types_(part.types) {
    if (part.onStream) stream_.emplace();
    check(seqparCommUserRank(comm_, &rank_), "seqparCommUserRank");
    check(seqparMeshShape(mesh_, &a_, &b_), "seqparMeshShape");
    for (const auto axis : {seqparMeshAxisQ, seqparMeshAxisKv}) {
      auto& group = groups_[axis];
      group.resize(static_cast<size_t>(axis == seqparMeshAxisQ ? a_ : b_));
      check(seqparMeshGroup(mesh_, axis, group.data(), &positions_[axis]), "seqparMeshGroup");
    }
  }

  Outputs forward() {
    Blocks blocks = ownBlocks();
    std::vector<Outputs> rows;
    for (int u = 0; u < a_; ++u) rows.push_back(noOutputs(attention_, owner(seqparMeshAxisQ, u)));
    Outputs carry{Vector<float>(longest() * rowOf(Tensor::Do), 0), Vector<float>(longest() * heads(), 0)};

    follow(
        seqparMeshForward, blocks, [&](const seqparMeshStep_t& step) { sendOutputs(step.index, rows, carry); },
        [&](seqparMeshTile_t tile) {
          const auto q = static_cast<size_t>(tile.q), kv = static_cast<size_t>(tile.kv);
          attend(attention_, blocks.q[q].data(), owner(seqparMeshAxisQ, tile.q), blocks.k[kv].data(),
                 blocks.v[kv].data(), owner(seqparMeshAxisKv, tile.kv), rows[q]);
        });
    sendOutputs(0, rows, carry);
    wait();
    return rows[0];
  }

  Gradients backward() {
    Blocks blocks = ownBlocks();
    std::vector<Vector<float>> dq, dk, dv;
    for (int u = 0; u < a_; ++u) dq.emplace_back(sizeOfBlock(Tensor::Q, owner(seqparMeshAxisQ, u)), 0.0f);
    for (int v = 0; v < b_; ++v) {
      dk.emplace_back(sizeOfBlock(Tensor::K, owner(seqparMeshAxisKv, v)), 0.0f);
      dv.emplace_back(sizeOfBlock(Tensor::V, owner(seqparMeshAxisKv, v)), 0.0f);
    }
    Vector<float> carryQ(longest() * rowOf(Tensor::Q), 0), carryK(longest() * rowOf(Tensor::K), 0),
        carryV(longest() * rowOf(Tensor::V), 0);
    const auto sendQ = [&](int index) { sendSums(seqparMeshAxisQ, index, {{&dq, &carryQ}}); };
    const auto sendKv = [&](int index) { sendSums(seqparMeshAxisKv, index, {{&dk, &carryK}, {&dv, &carryV}}); };

    follow(
        seqparMeshBackward, blocks,
        [&](const seqparMeshStep_t& step) {
          step.operation == seqparMeshSendDq ? sendQ(step.index) : sendKv(step.index);
        },
        [&](seqparMeshTile_t tile) {
          const auto q = static_cast<size_t>(tile.q), kv = static_cast<size_t>(tile.kv);
          addGradients(attention_, blocks.q[q].data(), blocks.dO[q].data(), owner(seqparMeshAxisQ, tile.q),
                       blocks.k[kv].data(), blocks.v[kv].data(), owner(seqparMeshAxisKv, tile.kv), dq[q].data(),
                       dk[kv].data(), dv[kv].data());
        });
    sendQ(0);
    sendKv(0);
    wait();
    return {std::move(dq[0]), std::move(dk[0]), std::move(dv[0])};
  }

  Outputs forwardAtOnce() {
    const auto q = gather(seqparMeshAxisQ, Tensor::Q, false);
    const auto k = gather(seqparMeshAxisKv, Tensor::K, true);
    const auto v = gather(seqparMeshAxisKv, Tensor::V, false);
    const auto tokens = tokensOf(seqparMeshAxisQ);
    int64_t all = 0;
    for (const int64_t each : tokens) all += each;
    Outputs joined{Vector<float>(static_cast<size_t>(all) * rowOf(Tensor::Do)),
                   Vector<float>(static_cast<size_t>(all) * heads())};
    int64_t first = 0;
    for (size_t u = 0; u < q.size(); ++u) {
      const int queryRank = groups_[seqparMeshAxisQ][u];
      Outputs one = noOutputs(attention_, queryRank);
      for (size_t w = 0; w < k.size(); ++w) {
        attend(attention_, q[u].data(), queryRank, k[w].data(), v[w].data(), groups_[seqparMeshAxisKv][w], one);
      }
      std::copy(one.o.begin(), one.o.end(), joined.o.begin() + first * static_cast<int64_t>(rowOf(Tensor::Do)));
      for (int64_t head = 0; head < attention_.heads; ++head) {
        std::copy_n(one.lse.begin() + head * tokens[u], tokens[u], joined.lse.begin() + head * all + first);
      }
      first += tokens[u];
    }
    Outputs result = noOutputs(attention_, rank_);
    auto o = encoded(joined.o);
    auto out = encoded(result.o);
    seqparMeshReduceScatterOParams_t params = SEQPAR_MESH_REDUCE_SCATTER_O_PARAMS_INITIALIZER;
    params.o = o.data();
    params.lse = joined.lse.data();
    params.result = out.data();
    params.resultLse = result.lse.data();
    params.tokens = tokens.data();
    params.heads = attention_.heads;
    params.dim = attention_.dv;
    params.dataType = types_.data;
    check(seqparMeshReduceScatterO(&params, mesh_, stream()), "seqparMeshReduceScatterO");
    wait();
    result.o = decoded(out, types_.data);
    return result;
  }

  Gradients backwardAtOnce() {
    const auto q = gather(seqparMeshAxisQ, Tensor::Q, true), dO = gather(seqparMeshAxisQ, Tensor::Do, false);
    const auto k = gather(seqparMeshAxisKv, Tensor::K, false), v = gather(seqparMeshAxisKv, Tensor::V, true);
    auto dq = zeros(q), dk = zeros(k), dv = zeros(v);
    for (size_t u = 0; u < q.size(); ++u) {
      for (size_t w = 0; w < k.size(); ++w) {
        addGradients(attention_, q[u].data(), dO[u].data(), groups_[seqparMeshAxisQ][u], k[w].data(), v[w].data(),
                     groups_[seqparMeshAxisKv][w], dq[u].data(), dk[w].data(), dv[w].data());
      }
    }
    return {scatter(seqparMeshAxisQ, Tensor::Q, dq), scatter(seqparMeshAxisKv, Tensor::K, dk),
            scatter(seqparMeshAxisKv, Tensor::V, dv)};
  }

 private:
  struct Blocks {
    std::vector<Vector<float>> q, dO, k, v;  ///< by #u
  };
  struct SumPart {
    std::vector<Vector<float>>* blocks;
    Vector<float>* carry;
  };

  void check(seqparResult_t result, const char* call) const { expectSuccess(result, call, comm_); }
  void* stream() { return stream_ ? stream_->get() : backend()->noStream(); }
  void wait() { backend()->synchronize(stream()); }
  size_t heads() const { return static_cast<size_t>(attention_.heads); }
  size_t rowOf(Tensor tensor) const { return static_cast<size_t>(rowLength(attention_, tensor)); }
  size_t longest() const {
    return static_cast<size_t>(*std::max_element(attention_.tokens.begin(), attention_.tokens.end()));
  }
  size_t sizeOfBlock(Tensor tensor, int rank) const {
    return static_cast<size_t>(attention_.tokensOf(rank)) * rowOf(tensor);
  }
  int owner(seqparMeshAxis_t axis, int index) const {
    const int size = axis == seqparMeshAxisQ ? a_ : b_;
    return groups_[axis][static_cast<size_t>((positions_[axis] + size - index) % size)];
  }
  std::vector<int64_t> tokensOf(seqparMeshAxis_t axis) const {
    std::vector<int64_t> tokens;
    for (const int rank : groups_[axis]) tokens.push_back(attention_.tokensOf(rank));
    return tokens;
  }
  Blocks ownBlocks() const {
    return {{blockOf(attention_, Tensor::Q, rank_)},
            {blockOf(attention_, Tensor::Do, rank_)},
            {blockOf(attention_, Tensor::K, rank_)},
            {blockOf(attention_, Tensor::V, rank_)}};
  }
  static std::vector<Vector<float>> zeros(const std::vector<Vector<float>>& like) {
    std::vector<Vector<float>> out;
    for (const auto& one : like) out.emplace_back(one.size(), 0.0f);
    return out;
  }

  /// As the partial results are held.
  Vector<std::byte> encoded(const Vector<float>& values) const {
    Vector<std::byte> out(values.size() * sizeOf(types_.data) + 1);
    fromFloat(values.data(), out.data(), types_.data, values.size());
    return out;
  }
  Vector<float> decoded(const Vector<std::byte>& bytes, seqparDataType_t type) const {
    Vector<float> out((bytes.size() - 1) / sizeOf(type));
    toFloat(bytes.data(), type, out.data(), out.size());
    return out;
  }

  template <typename Send, typename Compute>
  void follow(seqparMeshPass_t pass, Blocks& blocks, Send send, Compute compute) {
    int stepCount = 0, tileCount = 0;
    check(seqparMeshSchedule(mesh_, pass, nullptr, nullptr, &stepCount, &tileCount), "seqparMeshSchedule");
    std::vector<seqparMeshStep_t> steps(static_cast<size_t>(stepCount));
    std::vector<seqparMeshTile_t> tiles(static_cast<size_t>(tileCount));
    check(seqparMeshSchedule(mesh_, pass, steps.data(), tiles.data(), &stepCount, &tileCount), "seqparMeshSchedule");
    for (const auto& step : steps) {
      switch (step.operation) {
        case seqparMeshCompute:
          break;
        case seqparMeshRecvQ:
          receive(seqparMeshAxisQ, step.index, {{Tensor::Q, &blocks.q}});
          break;
        case seqparMeshRecvOdoq:
          receive(seqparMeshAxisQ, step.index, {{Tensor::Q, &blocks.q}, {Tensor::Do, &blocks.dO}});
          break;
        case seqparMeshRecvKv:
          receive(seqparMeshAxisKv, step.index, {{Tensor::K, &blocks.k}, {Tensor::V, &blocks.v}});
          break;
        default:
          send(step);
      }
      for (int t = 0; t < step.tileCount; ++t) compute(tiles[static_cast<size_t>(step.firstTile + t)]);
      wait();
    }
  }

  void receive(seqparMeshAxis_t axis, int index,
               const std::vector<std::pair<Tensor, std::vector<Vector<float>>*>>& tensors) {
    std::vector<seqparMeshPart_t> parts;
    for (const auto& [tensor, blocks] : tensors) {
      // NaN detects blocks that do not arrive.
      blocks->emplace_back(sizeOfBlock(tensor, owner(axis, index)), std::numeric_limits<float>::quiet_NaN());
      const auto& from = (*blocks)[static_cast<size_t>(index - 1)];
      auto& into = blocks->back();
      parts.push_back({from.data(), from.size() * sizeof(float), into.data(), into.size() * sizeof(float)});
    }
    check(seqparMeshReceive(axis, parts.data(), static_cast<int>(parts.size()), mesh_, stream()), "seqparMeshReceive");
  }

  void sendOutputs(int index, std::vector<Outputs>& rows, Outputs& carry) {
    auto& row = rows[static_cast<size_t>(index)];
    const int64_t tokens = attention_.tokensOf(owner(seqparMeshAxisQ, index));
    const int64_t next = attention_.tokensOf(owner(seqparMeshAxisQ, (index + 1) % a_));
    // A row of a smaller type is one's own conversion, as in a program that has such outputs.
    auto held = encoded(row.o);
    void* const data = types_.data == seqparFloat32 ? static_cast<void*>(row.o.data()) : held.data();
    seqparMeshReduceOParams_t params = SEQPAR_MESH_REDUCE_O_PARAMS_INITIALIZER;
    params.o = data;
    params.lse = row.lse.data();
    params.carry = carry.o.data();
    params.carryLse = carry.lse.data();
    params.tokens = tokens;
    params.carryTokens = next;
    params.heads = attention_.heads;
    params.dim = attention_.dv;
    params.dataType = types_.data;
    params.wireType = types_.wire;
    check(seqparMeshReduceO(index, &params, mesh_, stream()), "seqparMeshReduceO");
    if (types_.data == seqparFloat32) return;
    wait();
    row.o = decoded(held, types_.data);
  }

  void sendSums(seqparMeshAxis_t axis, int index, const std::vector<SumPart>& tensors) {
    const int size = axis == seqparMeshAxisQ ? a_ : b_;
    std::vector<seqparMeshSum_t> parts;
    std::vector<Vector<std::byte>> held;
    for (const auto& [blocks, carry] : tensors) {
      auto& block = (*blocks)[static_cast<size_t>(index)];
      held.push_back(encoded(block));
      void* const data = types_.data == seqparFloat32 ? static_cast<void*>(block.data()) : held.back().data();
      parts.push_back({data, block.size(), carry->data(), (*blocks)[static_cast<size_t>((index + 1) % size)].size()});
    }
    check(seqparMeshReduceSum(axis, index, parts.data(), static_cast<int>(parts.size()), types_.data, types_.wire,
                              mesh_, stream()),
          "seqparMeshReduceSum");
    if (types_.data == seqparFloat32) return;
    wait();
    for (size_t part = 0; part < tensors.size(); ++part) {
      (*tensors[part].blocks)[static_cast<size_t>(index)] = decoded(held[part], types_.data);
    }
  }

  /// All members' blocks of a tensor, by position.
  std::vector<Vector<float>> gather(seqparMeshAxis_t axis, Tensor tensor, bool inPlace) {
    const auto& group = groups_[axis];
    const auto mine = blockOf(attention_, tensor, rank_);
    std::vector<size_t> bytes;
    size_t all = 0, first = 0;
    for (size_t m = 0; m < group.size(); ++m) {
      if (m == static_cast<size_t>(positions_[axis])) first = all;
      bytes.push_back(sizeOfBlock(tensor, group[m]) * sizeof(float));
      all += bytes.back() / sizeof(float);
    }
    Vector<float> joined(all, std::numeric_limits<float>::quiet_NaN());
    if (inPlace) std::copy(mine.begin(), mine.end(), joined.begin() + static_cast<int64_t>(first));
    check(seqparMeshAllGather(axis, inPlace ? joined.data() + first : mine.data(), joined.data(), bytes.data(), mesh_,
                              stream()),
          "seqparMeshAllGather");
    wait();
    std::vector<Vector<float>> blocks;
    auto from = joined.begin();
    for (const size_t each : bytes) {
      const auto end = from + static_cast<int64_t>(each / sizeof(float));
      blocks.emplace_back(from, end);
      from = end;
    }
    return blocks;
  }

  Vector<float> scatter(seqparMeshAxis_t axis, Tensor tensor, const std::vector<Vector<float>>& blocks) {
    Vector<float> joined;
    std::vector<size_t> counts;
    for (const auto& block : blocks) {
      joined.insert(joined.end(), block.begin(), block.end());
      counts.push_back(block.size());
    }
    const auto send = encoded(joined);
    auto receive = encoded(Vector<float>(sizeOfBlock(tensor, rank_), std::numeric_limits<float>::quiet_NaN()));
    check(seqparMeshReduceScatter(axis, send.data(), receive.data(), counts.data(), types_.data, mesh_, stream()),
          "seqparMeshReduceScatter");
    wait();
    return decoded(receive, types_.data);
  }

  seqparComm_t comm_;
  seqparMesh_t mesh_;
  const MeshAttention& attention_;
  MeshTypes types_;
  std::optional<Stream> stream_;
  int rank_ = 0, a_ = 0, b_ = 0;
  std::vector<int> groups_[2];
  int positions_[2] = {0, 0};
};

}  // namespace

Outputs meshOutputs(const MeshPart& part, bool atOnce) {
  Runner runner(part);
  return atOnce ? runner.forwardAtOnce() : runner.forward();
}

Gradients meshGradients(const MeshPart& part, bool atOnce) {
  Runner runner(part);
  return atOnce ? runner.backwardAtOnce() : runner.backward();
}

}  // namespace seqpar::test
