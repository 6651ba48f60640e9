// RING_PASS_Q: context parallelism for inference (arXiv 2411.01783), section 3.3, "pass-Q": keys and values stay,
// queries go round, and so do their partial outputs, one hop behind. Backward, which the paper has not, moves queries
// as BURST.
#include "attn/softmax/algorithms.h"
#include "attn/softmax/query_gradients.h"

namespace seqpar::attn {
namespace {

class RingPassQOperator final : public SoftmaxOperator {
 public:
  RingPassQOperator(const Problem& problem, Exec& exec)
      : SoftmaxOperator(problem, exec),
        rotation_(problem, exec, ringOrder(problem, problem.ranks(), true),
                  {{&problem.queries, problem.type(), problem.desc.heads, problem.desc.headDim}},
                  {{&problem.queries, seqparFloat32, problem.desc.heads, problem.desc.valueDim},
                   {&problem.queries, seqparFloat32, problem.desc.heads, 0}}) {
    for (int step = 0; step <= rotation_.order().steps; ++step) {
      const int source = rotation_.order().source(step);
      rectangles_.push_back(problem.rectangles(source, problem.rank()));
      block_->expect(rectangles_.back(), problem.queries.tokensOf(source), problem.kvTokens());
    }
    if (problem.training()) gradients_ = std::make_unique<QueryGradientRing>(problem, exec, *block_);
  }

  void carve(Arena& arena) override {
    block_->carve(arena);
    rotation_.carve(arena);
    partial_ = takePartial(arena, problem_.queries.longest());
    if (!gradients_) return;
    gradients_->carve(arena);
    delta_ = arena.rows(problem_.desc.batch, problem_.desc.heads, problem_.tokens());
  }

  void open() override {
    block_->prepare();
    rotation_.open();
    if (gradients_) gradients_->open();
  }

  void forward(const seqparAttnForwardArgs_t& args) override {
    const auto own = inputs(args);
    rotation_.reset();
    if (rotation_.order().steps > 0) exec_.copy(rotation_.ownTensor(0), own.q);
    rotation_.turn(
        [&](int step) {
          const auto& seen = rectangles_[static_cast<size_t>(step)];
          if (step == 0 || seen.empty()) return;
          const auto part = partialOf(step);
          block_->clear(part);
          block_->forward({rotation_.tensor(0), own.k, own.v}, seen, part);
        },
        [&](int step) {
          const auto& seen = rectangles_[static_cast<size_t>(step)];
          const Partial sum{rotation_.sumTensor(0), rotation_.sumRows(1)};
          if (step == 0) {  // one's own: straight into the sum
            block_->clear(sum);
            block_->forward(own, seen, sum);
          } else if (!seen.empty()) {
            block_->merge(sum, partialOf(step));
          }
        });
    block_->finish({rotation_.homeTensor(0), rotation_.homeRows(1)}, sinks(args.sinks), outTensor(problem_, args.out),
                   lseRows(problem_, args.lse));
  }

  void backward(const seqparAttnBackwardArgs_t& args) override {
    makeDelta(*block_, args, delta_);
    gradients_->backward(args, inputs(args), delta_);
  }

 private:
  Partial partialOf(int step) const {
    const int64_t tokens = problem_.queries.tokensOf(rotation_.order().source(step));
    return {partial_.out.rows(0, tokens), partial_.lse.rows(0, tokens)};
  }

  Rotation rotation_;
  std::vector<std::vector<Rectangle>> rectangles_;
  Partial partial_;
  Rows delta_;
  std::unique_ptr<QueryGradientRing> gradients_;
};

}  // namespace

std::string refusesRingPassQ(const Problem& problem) {
  if (problem.wireType() != seqparFloat32) return "sends partial outputs in fp32 only";
  return {};
}

std::unique_ptr<Operator> makeRingPassQ(const Problem& problem, Exec& exec) {
  return std::make_unique<RingPassQOperator>(problem, exec);
}

}  // namespace seqpar::attn
