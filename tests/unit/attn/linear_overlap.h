// Calls of linear attention as launches on the emulator, with the records of LaunchSequence.
#pragma once

#include <cmath>
#include <memory>

#include "kernels/attn/linear/backward/gradients_sm90.h"
#include "kernels/attn/linear/fold_kernel.h"
#include "kernels/attn/linear/forward_sm90/kernel_arguments_sm90.cuh"
#include "kernels/attn/linear/sequence.h"
#include "linear_backward_check.h"
#include "linear_forward_check.h"

namespace seqpar::attn::test {

using seqpar::attn::backward::Task;
using seqpar::test::BackwardCase;
using seqpar::test::BackwardShape;

/// Accesses that the record of a launch lacks.
struct Missing {
  size_t launch = SIZE_MAX;
  Buffers LaunchRecord::*accesses = nullptr;
};

/// The launches of a call on a stream. Kernel arguments must outlive run().
class Launches {
 public:
  explicit Launches(const Missing& missing) : missing_(missing) {}

  const LaunchSequence& sequence() const { return sequence_; }
  /// `complete`: the kernel reads before its wait, because the sequence says that the buffers are complete.
  void add(LaunchRecord record, emulator::Grid grid, bool complete = false) {
    complete_.push_back(complete);
    if (missing_.launch == grids_.size()) record.*missing_.accesses = {};
    grid.early = sequence_.add(record);
    grid.nextAfterWait = record.trigger == Trigger::AfterWait;
    grids_.push_back(std::move(grid));
  }
  void run(uint64_t seed) const { emulator::runStream(grids_, seed); }

  size_t launches() const { return grids_.size(); }
  /// Of each launch, whether it starts early, then whether it reads before its wait.
  std::vector<bool> derived() const {
    std::vector<bool> result = complete_;
    for (const auto& grid : grids_) result.push_back(grid.early);
    return result;
  }

 private:
  Missing missing_;
  LaunchSequence sequence_;
  std::vector<bool> complete_;
  std::vector<emulator::Grid> grids_;
};

/// A CTA per item: then all items start before the predecessor.
inline int blocksFor(int64_t items) {
  return static_cast<int>(items);
}

template <forward_sm90::Pass P>
void addStates(Launches& to, const SegmentStates& pass, int segments, const Input& keys, const Input& values) {
  const auto kernel = std::make_shared<forward_sm90::StatesKernel>();
  REQUIRE(setArguments(*kernel, pass, segments, keys, values));
  forward_sm90::dispatch(pass.problem, [&](auto kind) {
    using Kind = decltype(kind);
    to.add(recordOf(pass), {blocksFor(kernel->items), forward_sm90::kThreads,
                            forward_sm90::StatesShared<Kind::value>::kBytes, [kernel] {
                              ptx::griddepcontrolLaunchDependents();
                              forward_sm90::StatesCta<Bfloat16, Kind::value, P>(*kernel, ptx::sharedMemory()).run();
                              ptx::griddepcontrolWait();
                            }});
    return 0;
  });
}

/// Without the last segment, which only the rank's map needs.
inline void addStates(Launches& to, const SegmentStates& pass) {
  if (pass.segments.count == 1) return;
  addStates<forward_sm90::Pass::Forward>(to, pass, pass.segments.count - 1, pass.problem.k, pass.problem.v);
}

inline void addFold(Launches& to, const Fold& fold) {
  const int columns = (fold.problem.dk * fold.problem.dv / 4 + kFoldThreads - 1) / kFoldThreads,
            heads = fold.heads.count;
  const int blocks = columns * heads * static_cast<int>(fold.problem.batch);
  to.add(recordOf(fold), {blocks, kFoldThreads, 0, [fold, columns, heads] {
                            const auto block = static_cast<unsigned>(ptx::block());
                            const auto c = static_cast<unsigned>(columns), h = static_cast<unsigned>(heads);
                            foldPart(fold, block % c, block / c % h, block / c / h);
                          }});
}

inline void addOutputs(Launches& to, const Outputs& pass) {
  const auto kernel = std::make_shared<forward_sm90::OutputsKernel>();
  REQUIRE(setArguments(*kernel, pass));
  kernel->pass.mapsVisible = mapsVisible(pass, &to.sequence());
  forward_sm90::dispatch(pass.problem, [&](auto kind) {
    using Kind = decltype(kind);
    to.add(recordOf(kernel->pass),
           {blocksFor(kernel->items), forward_sm90::kThreads, forward_sm90::OutputsShared::kBytes,
            [kernel] {
              constexpr bool kUniform = Kind::value == forward_sm90::GateKind::Uniform;
              if (kUniform && kernel->pass.tokens == Tokens::Lead) ptx::griddepcontrolLaunchDependents();
              forward_sm90::OutputsCta<Bfloat16, Kind::value>(*kernel, ptx::sharedMemory()).run();
            }},
           kernel->pass.mapsVisible == Visible::AtStart &&
               kernel->pass.tokens == Tokens::OfSegments);  // a lead reads no maps
    return 0;
  });
}

/// A forward call of an operator on one rank, in memory of its own.
class ForwardCall {
 public:
  ForwardCall(const ForwardSpec& spec, Maps content) : test_(spec), content_(content) {
    problem_ = test_.layout;
    problem_.q.data = test_.q.data();
    problem_.k.data = test_.k.data();
    problem_.v.data = test_.v.data();
    problem_.gates.data = test_.gates.data();
    test_.computeExpected();
  }

  /// Both passes, as launchForward() launches them.
  void whole(Launches& launches) {
    clear();
    const Segments segments = test_.segments(test_.spec.leadTokens).segments;
    maps_ = memory(stateMapsSize(problem_, segments) / sizeof(float));
    Outputs pass = outputs(segments);
    if (segments.begin > 0) {
      addStates(launches, states(pass));
      Outputs first = pass;
      first.problem.tokens = segments.begin;
      first.segments = {1, segments.begin};
      first.finalState = pass.maps.lead;
      if (segments.count > 1) first.tokens = Tokens::Lead;
      addOutputs(launches, first);
      pass.initial = pass.maps.lead;
    } else {
      addStates(launches, states(pass));
    }
    if (content_ == Maps::Prefix && segments.count > 1) addFold(launches, {problem_, segments, pass.heads, pass.maps});
    addOutputs(launches, pass);
  }

  /// The tokens in two parts, one after the other in the same workspace, as sequences with initial states of the
  /// caller. The state between them is the second one's.
  void parts(Launches& launches) {
    clear();
    const int64_t half = (test_.spec.tokens / 2 + 63) / 64 * 64;
    Segments segments = test_.segments(0).segments;
    segments.count = static_cast<int>((half + segments.tokens - 1) / segments.tokens);
    maps_ = memory(stateMapsSize(problem_, segments) / sizeof(float));
    between_ = memory(finalState_.size());
    for (const bool second : {false, true}) {
      Outputs pass = outputs(segments);
      const int64_t first = second ? half : 0;
      const auto from = [&](auto& tensor, int64_t bytes) {
        tensor.data = static_cast<const char*>(tensor.data) + first * tensor.token * bytes;
      };
      from(pass.problem.q, 2);
      from(pass.problem.k, 2);
      from(pass.problem.v, 2);
      if (problem_.gate != Gate::Head) from(pass.problem.gates, 4);
      pass.problem.tokens = second ? test_.spec.tokens - half : half;
      pass.out.data = static_cast<char*>(pass.out.data) + first * pass.out.token * 2;
      if (second) {
        pass.initial = between_.data();
      } else {
        pass.finalState = between_.data();
      }
      addStates(launches, states(pass));
      if (content_ == Maps::Prefix) addFold(launches, {pass.problem, segments, pass.heads, pass.maps});
      addOutputs(launches, pass);
    }
  }

  /// Largest error relative to its bound.
  double error() const {
    int64_t worst = -1;
    std::vector<double> found;
    for (const uint16_t bits : out_) found.push_back(bfloatToFloat(bits));
    const double ofOut = excess(test_.out, found, &worst);
    return std::max(ofOut, excess(test_.finalState, {finalState_.begin(), finalState_.end()}, &worst));
  }

 private:
  static std::vector<float> memory(size_t count) { return std::vector<float>(count, NAN); }
  void clear() {
    const ForwardSpec& spec = test_.spec;
    out_.assign(static_cast<size_t>(spec.batch * spec.tokens * spec.heads * spec.dv), 0xffff);
    finalState_ = memory(static_cast<size_t>(spec.batch * spec.heads * spec.dk * spec.dv));
  }
  SegmentStates states(const Outputs& pass) const {
    SegmentStates result{pass.problem, pass.segments, pass.heads, pass.maps};
    result.content = pass.content;
    return result;
  }
  Outputs outputs(const Segments& segments) {
    const ForwardSpec& spec = test_.spec;
    Outputs pass;
    pass.problem = problem_;
    pass.segments = segments;
    pass.heads = {0, spec.heads};
    pass.maps = stateMapsIn(maps_.data(), problem_, segments);
    pass.initial = spec.initial ? test_.initial.data() : nullptr;
    pass.out = {out_.data(), spec.tokens * spec.heads * spec.dv, spec.dv, spec.tokens * spec.dv};
    pass.finalState = finalState_.data();
    pass.content = content_;
    return pass;
  }

  ForwardCase test_;
  Maps content_;
  LinearProblem problem_;
  std::vector<float> maps_, between_, finalState_;
  std::vector<uint16_t> out_;
};

/// A backward call of an operator on one rank, in memory of its own.
class BackwardCall {
 public:
  BackwardCall(const BackwardShape& shape, uint64_t seed) : c_(shape, seed) {
    problem_ = c_.problem(c_.q.data(), c_.k.data(), c_.v.data(), c_.gates.data());
  }

  /// `keeps`: the forward has left its states.
  void whole(Launches& launches, bool keeps) {
    const HeadRange heads{0, problem_.heads};
    clear(keeps);
    if (!keeps) {
      SegmentStates pass{problem_, c_.segments, heads, before()};
      pass.content = c_.shape.content;
      addStates(launches, pass);
      if (pass.content == Maps::Prefix) addFold(launches, {problem_, c_.segments, heads, before()});
    }
    const SegmentStates reverse{problem_, c_.segments, heads, after()};
    addStates<forward_sm90::Pass::Backward>(launches, reverse, c_.segments.count - 1, problem_.q, dOut());
    if (c_.shape.content == Maps::Prefix) addFold(launches, {problem_, c_.segments, heads, after(), true});
    if (c_.shape.gate == Gate::Channel) {
      gradients<true>(launches);
    } else {
      gradients<false>(launches);
    }
  }

  /// Largest relative error.
  double error() const {
    const auto of = [&](const backward::test::Terms& found, const std::vector<double>& expected) {
      const double error = seqpar::test::relativeError(found.sum(1), expected);
      return std::isnan(error) ? INFINITY : error;
    };
    return std::max({of(*dq_, c_.expected.dq), of(*dk_, c_.expected.dk), of(*dv_, c_.expected.dv)});
  }

 private:
  Input dOut() const { return c_.dOutput(c_.dOut.data()); }
  StateMaps before() { return {before_.data(), beforeLog_.data()}; }
  StateMaps after() { return {after_.data(), afterLog_.data()}; }
  void clear(bool keeps) {
    before_ = keeps ? c_.before : std::vector<float>(c_.before.size(), NAN);
    beforeLog_ = keeps ? c_.beforeLog : std::vector<float>(c_.beforeLog.size(), NAN);
    after_.assign(c_.after.size(), NAN);
    afterLog_.assign(c_.afterLog.size(), NAN);
    dInitial_.assign(c_.stateGradient.size(), NAN);
    const size_t bytes = gradientsWorkspaceSize(problem_, c_.segments);
    scratch_.assign(bytes, static_cast<char>(0xff));
  }
  template <bool kChannel>
  void gradients(Launches& launches) {
    using Terms = backward::test::Terms;
    task_ = backward::taskOf(problem_, c_.segments, {0, problem_.heads}, dOut());
    task_.before = before();
    task_.after = after();
    task_.content = c_.shape.content;
    task_.initial = c_.initial.empty() ? nullptr : c_.initial.data();
    task_.finalGradient = c_.dFinal.empty() ? nullptr : c_.dFinal.data();
    dq_ = std::make_unique<Terms>(problem_, task_.valueBlocks, problem_.dk);
    dk_ = std::make_unique<Terms>(problem_, task_.valueBlocks, problem_.dk);
    dv_ = std::make_unique<Terms>(problem_, task_.keyBlocks, problem_.dv);
    gates_ = std::make_unique<Terms>(problem_, kChannel ? task_.valueBlocks : task_.keyBlocks * task_.valueBlocks,
                                     kChannel ? problem_.dk : 1);
    task_.dq = dq_->target;
    task_.dkOut = dk_->target;
    task_.dvOut = dv_->target;
    task_.dGates = gates_->target;
    task_.dInitial = dInitial_.data();
    const auto at = backward::workspaceOf(problem_, c_.segments);
    task_.states = scratch_.data() + at.states;
    task_.decays = scratch_.data() + std::max<int64_t>(at.decays, 0);
    task_.strong = reinterpret_cast<uint32_t*>(scratch_.data() + at.strong);
    Gradients pass;
    pass.problem = problem_;
    pass.segments = c_.segments;
    pass.before = before();
    pass.after = after();
    pass.content = Maps::PerSegment;  // kernels with prefixes do not start early: no reason of correctness
    pass.finalGradient = task_.finalGradient;
    pass.workspace = scratch_.data();
    pass.dq.data = dq_->numbers.data();
    pass.dk.data = dk_->numbers.data();
    pass.dv.data = dv_->numbers.data();
    pass.dGates.data = gates_->numbers.data();
    pass.dInitial = task_.dInitial;
    task_.beforeVisible = beforeVisible(pass, &launches.sequence());
    using Kernel = backward::sm90::GradientsKernel<Bf16, kChannel>;
    if constexpr (!kChannel) REQUIRE(backward::sm90::encodeMaps<Bf16>(mapped_, task_));
    launches.add(
        recordOf(pass, task_.beforeVisible),
        {blocksFor(backward::itemsOf(task_)), backward::sm90::kGradientThreads, sizeof(typename Kernel::Memory),
         [this] {
           if constexpr (kChannel) {
             Kernel::run(task_);
           } else {
             Kernel::run(mapped_);
           }
         }},
        task_.beforeVisible == Visible::AtStart);
  }

  BackwardCase c_;
  LinearProblem problem_;
  std::vector<float> before_, beforeLog_, after_, afterLog_, dInitial_;
  std::vector<char> scratch_;
  std::unique_ptr<backward::test::Terms> dq_, dk_, dv_, gates_;
  Task task_;
  backward::sm90::MappedTask mapped_;  ///< without channel decays
};

}  // namespace seqpar::attn::test
