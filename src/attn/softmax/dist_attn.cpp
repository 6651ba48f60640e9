// DISTATTN: LightSeq / DistFlashAttn (arXiv 2310.03294, section 3.1): a causal ring of contiguous shards with help from
// ranks that would be idle. In step t a rank receives the keys and values of the t-th rank before it. A rank with no
// such predecessor receives the queries of a rank near the end instead, attends them to its own keys, and returns the
// partial results. With an odd number of ranks no rank is idle; with an even number half of them are idle in the last
// step.
#include <array>

#include "attn/boundary.h"
#include "attn/softmax/base.h"
#include "attn/softmax/cost.h"
#include "seqpar/ring.h"

namespace seqpar::attn {
namespace {

constexpr const char* kCaller = "attention plan";

enum class Role { kIdle, kOwner, kHelper };

/// The work of a rank in a step: its queries with another rank's keys, or, as a helper, another rank's queries with its
/// keys.
struct Task {
  Role role = Role::kIdle;
  int query = 0, key = 0;  ///< owning ranks
};

Task taskOf(const Problem& problem, int rank, int step) {
  const int ranks = problem.ranks();
  Task task;
  if (rank >= step) {
    task = {Role::kOwner, rank, rank - step};
  } else if (2 * step != ranks) {
    task = {Role::kHelper, ranks + rank - step, rank};
  }
  if (task.role != Role::kIdle && problem.scores(task.query, task.key) == 0) task.role = Role::kIdle;
  return task;
}

/// Tensors of one direction of a shift.
class Message {
 public:
  void add(const Tensor& tensor) { add(tensor.data, tensor.bytes()); }
  void add(const Rows& rows) { add(rows.data, rows.bytes()); }
  bool empty() const { return buffers_.empty(); }
  int count() const { return static_cast<int>(buffers_.size()); }
  void* const* buffers() const { return buffers_.data(); }
  const size_t* bytes() const { return bytes_.data(); }

 private:
  void add(void* data, size_t bytes) {
    buffers_.push_back(data);
    bytes_.push_back(bytes);
  }
  std::vector<void*> buffers_;
  std::vector<size_t> bytes_;
};

class DistAttnOperator final : public SoftmaxOperator {
 public:
  DistAttnOperator(const Problem& problem, Exec& exec) : SoftmaxOperator(problem, exec), steps_(problem.ranks() / 2) {
    for (int step = 0; step <= steps_; ++step) {
      const Task task = taskOf(problem, problem.rank(), step);
      tasks_.push_back(task);
      rectangles_.push_back(task.role == Role::kIdle ? std::vector<Rectangle>{}
                                                     : problem.rectangles(task.query, task.key));
      if (task.role == Role::kIdle) continue;
      block_->expect(rectangles_.back(), problem.queries.tokensOf(task.query), problem.keys.tokensOf(task.key));
    }
  }

  void carve(Arena& arena) override {
    block_->carve(arena);
    own_ = carveInputs(arena, problem_.tokens(), problem_.kvTokens());
    partial_ = takePartial(arena, problem_.tokens());
    for (auto& buffer : buffers_) {
      buffer.in = carveInputs(arena, problem_.queries.longest(), problem_.keys.longest());
      buffer.helped = takePartial(arena, problem_.queries.longest());
      buffer.returned = takePartial(arena, problem_.tokens());
      if (!problem_.training()) continue;
      buffer.sent = carveSums(arena, problem_.queries.longest(), problem_.keys.longest());
      buffer.sums = carveSums(arena, problem_.tokens(), problem_.kvTokens());
    }
    if (problem_.training()) sums_ = carveSums(arena, problem_.tokens(), problem_.kvTokens());
  }

  void open() override { block_->prepare(); }

  void forward(const seqparAttnForwardArgs_t& args) override {
    loadInputs(blockInputs(problem_, args));
    clear(exec_, partial_);
    pass(
        false,
        [&](int step) {
          const auto in = inputsOf(step);
          const auto& seen = rectangles_[static_cast<size_t>(step)];
          if (tasks_[static_cast<size_t>(step)].role == Role::kOwner) {
            block_->forward({in.q, in.k, in.v}, seen, partial_);
          } else {
            const auto helped = rowsOf(bufferOf(step).helped, step);
            clear(exec_, helped);
            block_->forward({in.q, in.k, in.v}, seen, helped);
          }
        },
        [&](int step) {
          if (sentTo(step).role == Role::kHelper) block_->merge(partial_, bufferOf(step).returned);
        });
    block_->finish(partial_, sinks(args.sinks), outTensor(problem_, args.out), lseRows(problem_, args.lse));
  }

  void backward(const seqparAttnBackwardArgs_t& args) override {
    loadInputs(blockInputs(problem_, args));
    makeDelta(*block_, args, own_.delta);
    exec_.copy(own_.dOut, outTensor(problem_, args.dOut));
    exec_.copy(own_.lse, lseRows(problem_, args.lse));
    if (block_->needsOut()) exec_.copy(own_.out, outTensor(problem_, args.out));
    for (const auto& sum : {sums_.dq, sums_.dk, sums_.dv}) exec_.zero(sum);
    pass(
        true,
        [&](int step) {
          BlockGradients into = sums_;
          const auto sent = sumsOf(step);
          if (step > 0 && tasks_[static_cast<size_t>(step)].role == Role::kOwner) {
            exec_.zero(into.dk = sent.dk);
            exec_.zero(into.dv = sent.dv);
          } else if (step > 0) {
            exec_.zero(into.dq = sent.dq);
          }
          block_->backward(inputsOf(step), rectangles_[static_cast<size_t>(step)], into);
        },
        [&](int step) {
          const auto role = sentTo(step).role;
          if (role == Role::kHelper) exec_.add(sums_.dq, bufferOf(step).sums.dq);
          if (role != Role::kOwner) return;
          exec_.add(sums_.dk, bufferOf(step).sums.dk);
          exec_.add(sums_.dv, bufferOf(step).sums.dv);
        });
    exec_.copy(queryTensor(problem_, args.dq), sums_.dq);
    exec_.copy(keyTensor(problem_, args.dk), sums_.dk);
    exec_.copy(valueTensor(problem_, args.dv), sums_.dv);
  }

 private:
  /// Buffers of one step; two alternate: during a step the next step's inputs are received and the previous step's
  /// results are sent.
  struct Buffer {
    BlockGradientInputs in;    ///< received inputs
    Partial helped, returned;  ///< computed for another rank; received for this rank's queries
    BlockGradients sent, sums;
  };

  const Buffer& bufferOf(int step) const { return buffers_[static_cast<size_t>(step % 2)]; }
  int rankAt(int distance) const { return (problem_.rank() + distance + problem_.ranks()) % problem_.ranks(); }
  /// The task of the rank that receives this rank's tensors.
  Task sentTo(int step) const { return taskOf(problem_, rankAt(step), step); }

  BlockGradientInputs carveInputs(Arena& arena, int64_t rows, int64_t columns) const {
    const auto& d = problem_.desc;
    const auto type = problem_.type();
    BlockGradientInputs in;
    in.q = arena.tensor(type, d.batch, rows, d.heads, d.headDim);
    in.k = arena.tensor(type, d.batch, columns, d.kvHeads, d.headDim);
    in.v = arena.tensor(type, d.batch, columns, d.kvHeads, d.valueDim);
    if (!problem_.training()) return in;
    in.dOut = arena.tensor(type, d.batch, rows, d.heads, d.valueDim);
    in.lse = arena.rows(d.batch, d.heads, rows);
    in.delta = arena.rows(d.batch, d.heads, rows);
    if (block_->needsOut()) in.out = arena.tensor(type, d.batch, rows, d.heads, d.valueDim);
    return in;
  }

  BlockGradients carveSums(Arena& arena, int64_t rows, int64_t columns) const {
    const auto& d = problem_.desc;
    return {arena.tensor(seqparFloat32, d.batch, rows, d.heads, d.headDim),
            arena.tensor(seqparFloat32, d.batch, columns, d.kvHeads, d.headDim),
            arena.tensor(seqparFloat32, d.batch, columns, d.kvHeads, d.valueDim)};
  }

  void loadInputs(const BlockInputs& given) {
    exec_.copy(own_.q, given.q);
    exec_.copy(own_.k, given.k);
    exec_.copy(own_.v, given.v);
  }

  /// Messages are dense: `buffer` with the given number of tokens.
  static Tensor dense(const Tensor& buffer, int64_t tokens) {
    return denseTensor(buffer.data, buffer.type, buffer.batch, tokens, buffer.heads, buffer.dim);
  }
  static Rows dense(const Rows& buffer, int64_t tokens) {
    return denseRows(buffer.data, buffer.batch, buffer.heads, tokens);
  }
  int64_t rowsOfStep(int step) const { return problem_.queries.tokensOf(tasks_[static_cast<size_t>(step)].query); }
  int64_t columnsOfStep(int step) const { return problem_.keys.tokensOf(tasks_[static_cast<size_t>(step)].key); }
  Partial rowsOf(const Partial& partial, int step) const {
    return {dense(partial.out, rowsOfStep(step)), dense(partial.lse, rowsOfStep(step))};
  }
  BlockGradients sumsOf(int step) const {
    const auto& sent = bufferOf(step).sent;
    return {dense(sent.dq, rowsOfStep(step)), dense(sent.dk, columnsOfStep(step)), dense(sent.dv, columnsOfStep(step))};
  }

  BlockGradientInputs inputsOf(int step) const {
    BlockGradientInputs in = own_;
    if (step == 0) return in;
    const auto& arrivals = bufferOf(step).in;
    if (tasks_[static_cast<size_t>(step)].role == Role::kOwner) {
      in.k = dense(arrivals.k, columnsOfStep(step));
      in.v = dense(arrivals.v, columnsOfStep(step));
      return in;
    }
    const int64_t rows = rowsOfStep(step);
    in.q = dense(arrivals.q, rows);
    in.dOut = dense(arrivals.dOut, rows);
    in.lse = dense(arrivals.lse, rows);
    in.delta = dense(arrivals.delta, rows);
    in.out = dense(arrivals.out, rows);
    return in;
  }

  Message inputMessage(const BlockGradientInputs& in, Role role, bool backward) const {
    Message message;
    if (role == Role::kOwner) {
      message.add(in.k);
      message.add(in.v);
    } else if (role == Role::kHelper) {
      message.add(in.q);
      if (backward) {
        message.add(in.dOut);
        message.add(in.lse);
        if (block_->needsOut()) {
          message.add(in.out);
        } else {
          message.add(in.delta);
        }
      }
    }
    return message;
  }

  static Message resultMessage(const Partial& partial, const BlockGradients& sums, Role role, bool backward) {
    Message message;
    if (role == Role::kHelper && backward) message.add(sums.dq);
    if (role == Role::kHelper && !backward) {
      message.add(partial.out);
      message.add(partial.lse);
    }
    if (role == Role::kOwner && backward) {
      message.add(sums.dk);
      message.add(sums.dv);
    }
    return message;
  }

  void shift(int sendPeer, const Message& sent, int receivePeer, const Message& received) {
    seqparShiftParams_t params = SEQPAR_SHIFT_PARAMS_INITIALIZER;
    if (!sent.empty()) params.sendPeer = sendPeer;
    params.sendTensors = sent.count();
    params.sendBuffers = sent.buffers();
    params.sendBytes = sent.bytes();
    if (!received.empty()) params.receivePeer = receivePeer;
    params.receiveTensors = received.count();
    params.receiveBuffers = received.buffers();
    params.receiveBytes = received.bytes();
    require(seqparShift(&params, problem_.comm, exec_.side()), kCaller, problem_.comm);
  }

  void sendInputs(int step, bool backward) {
    shift(rankAt(step), inputMessage(own_, sentTo(step).role, backward), rankAt(-step),
          inputMessage(inputsOf(step), tasks_[static_cast<size_t>(step)].role, backward));
  }

  /// Returns the step's results to the rank that sent the inputs.
  void sendResults(int step, bool backward) {
    const auto& buffer = bufferOf(step);
    const auto helped = rowsOf(buffer.helped, step);
    const BlockGradients sums = backward ? sumsOf(step) : BlockGradients{};
    shift(rankAt(-step), resultMessage(helped, sums, tasks_[static_cast<size_t>(step)].role, backward), rankAt(step),
          resultMessage(buffer.returned, buffer.sums, sentTo(step).role, backward));
  }

  /// Runs all steps: compute(step) if this rank has work, take(step) when the results of a step have been received.
  template <typename Compute, typename Take>
  void pass(bool backward, const Compute& compute, const Take& take) {
    for (int step = 0; step <= steps_; ++step) {
      exec_.fork();
      if (step < steps_) sendInputs(step + 1, backward);
      if (step > 1) sendResults(step - 1, backward);
      if (tasks_[static_cast<size_t>(step)].role != Role::kIdle) compute(step);
      exec_.join();
      if (step > 1) take(step - 1);
    }
    if (steps_ == 0) return;
    exec_.fork();
    sendResults(steps_, backward);
    exec_.join();
    take(steps_);
  }

  int steps_;
  std::vector<Task> tasks_;  ///< [steps + 1] of this rank
  std::vector<std::vector<Rectangle>> rectangles_;
  BlockGradientInputs own_;
  std::array<Buffer, 2> buffers_;
  Partial partial_;
  BlockGradients sums_;
};

std::string refusesDistAttn(const Problem& problem) {
  if (problem.desc.mask != seqparAttnCausal) return "supports causal masks only";
  if (problem.slices) return "supports no slices";
  if (problem.crossAttention()) return "supports self-attention only";
  if (problem.hasLayout && !problem.queries.contiguous()) return "runs on the contiguous layout only";
  if (problem.wireType() != seqparFloat32) return "sends partial results in fp32 only";
  return {};
}

Estimate estimateDistAttn(const Problem& problem) {
  const CostModel model(problem);
  const auto& d = problem.desc;
  const int ranks = problem.ranks();
  const auto tokens = static_cast<double>(problem.queries.longest());
  const double rows = model.bytes(tokens, d.heads, 1, seqparFloat32);
  const double kv = model.kvBytes(tokens), sums = model.kvSumBytes(tokens), q = model.qBytes(tokens);
  const double out = model.bytes(tokens, d.heads, d.valueDim, seqparFloat32) + rows;
  const double inputs = q + model.outBytes(tokens) + model.rowBytes(tokens);
  const double dq = model.bytes(tokens, d.heads, d.headDim, seqparFloat32);
  Estimate estimate;
  for (int step = 0; step <= ranks / 2; ++step) {
    const bool helped = step > 0 && 2 * step != ranks;  // in this step ranks have helpers
    double scores = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      if (rank >= step) scores = std::max(scores, model.scores(rank, rank - step));
      if (rank < step && helped) scores = std::max(scores, model.scores(ranks + rank - step, rank));
    }
    const auto shape = step == 0 ? model.ownShape() : model.otherShape();
    const double bytesOut = step == 0 ? 0 : helped ? std::max(kv, q) : kv;
    const double bytesBack = step == 0 ? 0 : helped ? std::max(kv, inputs) : kv;
    const double home = helped ? out : 0;
    const double homeBack = step == 0 ? 0 : helped ? std::max(sums, dq) : sums;
    estimate.forwardUs += model.overlapUs(model.blockUs(scores, false, shape),
                                          model.sendUs(bytesOut) + model.sendUs(home), bytesOut + home);
    estimate.backwardUs += model.overlapUs(model.blockUs(scores, true, shape),
                                           model.sendUs(bytesBack) + model.sendUs(homeBack), bytesBack + homeBack);
    // An upper bound: no rank has the more expensive role in every step.
    estimate.bytes += bytesOut + home + bytesBack + homeBack;
  }
  return estimate;
}

const RegisteredAlgorithm kDistAttn({.id = seqparAttnDistAttn,
                                     .name = "dist_attn",
                                     .paper = "LightSeq / DistFlashAttn, arXiv 2310.03294, section 3.1",
                                     .refuses = refusesDistAttn,
                                     .ownLayout = contiguousLayout,
                                     .estimate = estimateDistAttn,
                                     .make = makeOperator<DistAttnOperator>});

}  // namespace
}  // namespace seqpar::attn
