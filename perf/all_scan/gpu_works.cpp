// The measured works of the NCCL peers.
#include "gpu_combine.h"
#include "problem.h"

namespace seqpar::perf {
namespace {

constexpr int kChainBlocks[] = {1, 2, 4, 8};

/// A rank's place in the order of the scan.
struct Order {
  Order(const Problem& problem, const Group& group)
      : forward(problem.direction() == seqparForward),
        size(group.size()),
        position(forward ? group.rank() : size - 1 - group.rank()) {}
  int rankAt(int place) const { return forward ? place : size - 1 - place; }
  bool first() const { return position == 0; }
  bool last() const { return position + 1 == size; }

  bool forward;
  int size, position;
};

/// Common base of all peers.
class Scan {
 public:
  Scan(std::shared_ptr<Problem> problem, Group& group, Nccl& nccl)
      : problem_(std::move(problem)),
        map_(problem_->map()),
        order_(*problem_, group),
        nccl_(nccl),
        stream_(group.gpu()->stream()) {}
  virtual ~Scan() = default;
  Scan(const Scan&) = delete;
  Scan& operator=(const Scan&) = delete;

  virtual void run() = 0;

  static Work workOf(const std::shared_ptr<Scan>& scan) {
    Work work;
    const auto problem = scan->problem_;
    work.prepare = [problem] { problem->reset(); };
    work.run = [scan] { scan->run(); };
    work.wrong = [problem] { return problem->wrong(false); };
    return work;
  }

 protected:
  float* prefix() { return static_cast<float*>(problem_->prefix(false)); }
  float* total() { return static_cast<float*>(problem_->total(false)); }
  const float* state() { return static_cast<const float*>(problem_->state()); }
  size_t stateBytes() const { return map_.shape.elements() * sizeof(float); }
  size_t transitionBytes() const { return map_.coefficients() * sizeof(float); }

  std::shared_ptr<Problem> problem_;
  AffineMap map_;
  Order order_;
  Nccl& nccl_;
  void* stream_;
};

/// All-gathers the maps, then each rank combines those before it. `exact`: by launchExactCombine().
class Gather : public Scan {
 public:
  Gather(const std::shared_ptr<Problem>& problem, Group& group, Nccl& nccl, bool exact)
      : Scan(problem, group, nccl),
        exact_(exact),
        states_(stateBytes() * static_cast<size_t>(order_.size), group.comm()),
        transitions_(transitionBytes() * static_cast<size_t>(order_.size), group.comm()),
        unwanted_(problem->wantsPrefix() ? 0 : stateBytes(), group.comm()) {}

  void run() override {
    nccl_.groupStart();
    nccl_.allGather(state(), states_.data(), stateBytes());
    if (transitionBytes() > 0) nccl_.allGather(problem_->transition(), transitions_.data(), transitionBytes());
    nccl_.groupEnd();
    MapList maps;
    maps.count = order_.position;
    maps.sStride = static_cast<std::ptrdiff_t>(map_.shape.elements()) * (order_.forward ? 1 : -1);
    maps.aStride = static_cast<std::ptrdiff_t>(map_.coefficients()) * (order_.forward ? 1 : -1);
    const auto first = static_cast<size_t>(order_.rankAt(0));
    maps.s = static_cast<const float*>(states_.data()) + first * map_.shape.elements();
    if (transitionBytes() > 0) {
      maps.a = static_cast<const float*>(transitions_.data()) + first * map_.coefficients();
    }
    float* const out = prefix() != nullptr ? prefix() : static_cast<float*>(unwanted_.data());
    if (exact_) {
      launchExactCombine(map_, maps, out, total(), stream_);
    } else {
      launchCombine(map_, maps, nullptr, out, total(), 0, map_.units(), stream_);
    }
  }

 private:
  bool exact_;
  Buffer states_, transitions_, unwanted_;
};

/// Rank to rank in blocks: a block is sent on while the next one is received.
class Chain : public Scan {
 public:
  Chain(const std::shared_ptr<Problem>& problem, Group& group, Nccl& nccl, size_t blocks)
      : Scan(problem, group, nccl),
        blocks_(std::min(blocks, map_.units())),
        incoming_(problem->wantsPrefix() ? 0 : stateBytes(), group.comm()),
        outgoing_(problem->wantsTotal() ? 0 : stateBytes(), group.comm()) {}

  void run() override {
    float* const x = prefix() != nullptr ? prefix() : static_cast<float*>(incoming_.data());
    float* const out = total() != nullptr ? total() : static_cast<float*>(outgoing_.data());
    if (order_.first()) launchCombine(map_, {}, nullptr, x, nullptr, 0, map_.units(), stream_);
    const MapList mine{problem_->transition(), state(), 0, 0, 1};
    const auto transfer = [&](float* data, size_t block, bool sends) {
      const size_t begin = unit(block) * map_.unitElements();
      const size_t bytes = (unit(block + 1) * map_.unitElements() - begin) * sizeof(float);
      if (sends) {
        nccl_.send(data + begin, bytes, order_.rankAt(order_.position + 1));
      } else {
        nccl_.receive(data + begin, bytes, order_.rankAt(order_.position - 1));
      }
    };
    for (size_t step = 0; step <= blocks_; ++step) {
      nccl_.groupStart();
      if (!order_.last() && step > 0) transfer(out, step - 1, true);
      if (!order_.first() && step < blocks_) transfer(x, step, false);
      nccl_.groupEnd();
      const bool combines = step < blocks_ && (!order_.last() || total() != nullptr);
      if (combines) launchCombine(map_, mine, x, out, nullptr, unit(step), unit(step + 1), stream_);
    }
  }

 private:
  size_t unit(size_t block) const { return map_.units() * block / blocks_; }

  size_t blocks_;
  Buffer incoming_, outgoing_;
};

}  // namespace

std::vector<Peer> makeGpuPeers(std::shared_ptr<Problem> problem, Group& group, Nccl& nccl) {
  std::vector<Peer> peers;
  const auto addGather = [&](const char* name, bool exact) {
    peers.push_back({name, 0, Scan::workOf(std::make_shared<Gather>(problem, group, nccl, exact)), {}});
  };
  addGather("nccl_lasp2", false);
  if (canCombineExactly(problem->map())) addGather("nccl_exact", true);
  for (const int blocks : kChainBlocks) {
    if (static_cast<size_t>(blocks) > problem->map().units()) break;
    const auto chain = std::make_shared<Chain>(problem, group, nccl, static_cast<size_t>(blocks));
    peers.push_back({"nccl_chain", blocks, Scan::workOf(chain), {}});
  }
  return peers;
}

}  // namespace seqpar::perf
