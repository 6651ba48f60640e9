// The forward kernels of linear attention against a recurrence in fp64. Exit status 77: no GPU. Arguments: --seed N,
// --cases N; --small: few cases, for a checker that is slow; --channel: of many heads only those with channel decays;
// --heads I N: only part I of N of the cases with many heads and without channel decays.
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <optional>
#include <random>
#include <string>

#include "common/draw_seed.h"
#include "kernels/attn/linear/from_zero.h"
#include "kernels/attn/linear/save_initial.h"
#include "kernels/attn/linear/sequence.h"
#include "support/gated_values.h"
#include "support/linear_forward_case.h"

namespace {

using namespace seqpar;
using namespace seqpar::attn;
using namespace seqpar::test;

int failures = 0;
int checks = 0;
double largest = 0;
bool onlyChannel = false;
int part = 0, parts = 0;  ///< only each `parts`-th case with many heads and without channel decays; 0: all

void check(bool fine, const std::string& what) {
  ++checks;
  if (fine) return;
  if (++failures <= 20) std::printf("failed: %s\n", what.c_str());
}

/// Device memory with what a kernel must not leave: NaN in every type.
template <class T>
class OnDevice {
 public:
  explicit OnDevice(size_t count) : count_(count) {
    check(cudaMalloc(&data_, std::max<size_t>(count * sizeof(T), 16)) == cudaSuccess, "cudaMalloc");
    check(cudaMemset(data_, 0xff, count * sizeof(T)) == cudaSuccess, "cudaMemset");
  }
  explicit OnDevice(const std::vector<T>& from) : OnDevice(from.size()) {
    check(cudaMemcpy(data_, from.data(), count_ * sizeof(T), cudaMemcpyHostToDevice) == cudaSuccess, "copy to device");
  }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;
  ~OnDevice() { cudaFree(data_); }
  T* get() const { return static_cast<T*>(data_); }
  std::vector<T> values() const {
    std::vector<T> values(count_);
    check(cudaMemcpy(values.data(), data_, count_ * sizeof(T), cudaMemcpyDeviceToHost) == cudaSuccess, "copy to host");
    return values;
  }

 private:
  size_t count_;
  void* data_ = nullptr;
};

struct Results {
  std::vector<char> out;
  std::vector<float> finalState, rankState, rankLogDecay, saved;  ///< empty if not supported: `saved`, finalState
  bool operator==(const Results&) const = default;
};

/// `ctas` limits the launches; with `byHeads` each head is a separate launch; without `rank` the rank's map is not
/// computed, and launchForward() runs both passes; `content` as in SegmentStates.
Results run(const ForwardCase& test, int ctas, bool byHeads, bool rank, Maps content = Maps::Prefix) {
  const ForwardSpec& spec = test.spec;
  std::optional<GatedValues> gated;
  if (spec.inputGates) gated.emplace(test.v, test.layout, spec.seed);
  const OnDevice<char> q(test.q), k(test.k), v(gated ? gated->values : test.v), gates(test.gates);
  const OnDevice<float> inputGates(gated ? gated->gates : std::vector<float>());
  const OnDevice<float> initial(test.initial);
  const auto states = static_cast<size_t>(spec.batch * spec.heads * spec.dk) * static_cast<size_t>(spec.dv);
  const size_t size = spec.type == seqparFloat32 ? 4 : 2;
  const OnDevice<char> out(static_cast<size_t>(spec.batch * spec.tokens * spec.heads * spec.dv) * size);
  const OnDevice<float> finalState(states), rankState(states);
  const OnDevice<float> rankLogDecay(static_cast<size_t>(spec.batch * spec.heads * transitionWidth(test.layout)));

  LinearProblem problem = test.layout;
  problem.q.data = q.get();
  problem.k.data = k.get();
  problem.v.data = v.get();
  problem.gates.data = gates.get();
  if (spec.inputGates) problem.inputGates = {inputGates.get(), spec.tokens * spec.heads, spec.heads, 1};
  const auto cut = test.segments(rank ? 0 : spec.leadTokens);
  const OnDevice<Span> spans(cut.spans);
  Segments segments = cut.segments;
  if (!cut.spans.empty()) segments.spans = spans.get();
  const OnDevice<char> workspace(stateMapsSize(problem, segments));
  const OnDevice<float> ofOutputs(outputsWorkspaceSize(problem) / sizeof(float));
  SegmentStates first;
  first.problem = problem;
  first.segments = segments;
  first.maps = stateMapsIn(workspace.get(), problem, segments);
  first.state = rank ? rankState.get() : nullptr;
  first.logDecay = rank ? rankLogDecay.get() : nullptr;
  first.content = content;
  Outputs second;
  second.content = content;
  second.problem = problem;
  second.segments = segments;
  second.maps = first.maps;
  second.initial = spec.initial ? initial.get() : nullptr;
  second.out.data = out.get();
  second.out.batch = spec.tokens * spec.heads * spec.dv;
  second.out.head = spec.tokens * spec.dv;
  second.out.token = spec.dv;
  second.finalState = finalState.get();
  second.workspace = ofOutputs.get();
  const bool saves = !rank && !byHeads && cut.spans.empty() && savesInitial(problem);
  const OnDevice<float> saved(saves ? states : 0);
  const bool fromZero = saves && spec.initial && spec.seed % 2 == 0 && forwardFromZero(problem);
  for (int head = 0; head < spec.heads; head += byHeads ? 1 : spec.heads) {
    LaunchSequence sequence;
    const Launch launch{nullptr, ctas, &sequence};
    first.heads = second.heads = {head, byHeads ? 1 : spec.heads};
    if (fromZero) {
      Outputs zero = second;
      zero.initial = nullptr;
      zero.finalState = nullptr;
      check(launchForwardFromZero(zero, launch) == cudaSuccess, "launchForwardFromZero: " + spec.name());
      zero.initial = second.initial;
      check(launchAddInitial(zero, launch) == cudaSuccess, "launchAddInitial: " + spec.name());
      continue;
    }
    if (!rank) {
      const int error = saves ? launchForwardAndSave(second, saved.get(), launch) : launchForward(second, launch);
      check(error == cudaSuccess, "launchForward: " + spec.name());
      continue;
    }
    check(launchSegmentStates(first, launch) == cudaSuccess, "launchSegmentStates: " + spec.name());
    check(launchOutputs(second, launch) == cudaSuccess, "launchOutputs: " + spec.name());
  }
  const cudaError_t error = cudaDeviceSynchronize();
  check(error == cudaSuccess, std::string(cudaGetErrorString(error)) + ": " + spec.name());
  if (error != cudaSuccess) std::exit(1);
  if (fromZero) return {out.values(), {}, {}, {}, {}};
  return {out.values(), finalState.values(), rankState.values(), rankLogDecay.values(), saved.values()};
}

std::vector<double> toDoubles(const std::vector<float>& numbers) {
  return {numbers.begin(), numbers.end()};
}

std::vector<double> toDoubles(const std::vector<char>& numbers, int type) {
  std::vector<double> values(numbers.size() / (type == seqparFloat32 ? 4 : 2));
  for (size_t i = 0; i < values.size(); ++i) values[i] = numberOf(numbers, type, static_cast<int64_t>(i));
  return values;
}

void compare(const char* what, const ForwardSpec& spec, const Expected& expected, const std::vector<double>& found) {
  int64_t worst = -1;
  const double ratio = excess(expected, found, &worst);
  largest = std::max(largest, ratio);
  if (ratio <= 1) return check(true, "");
  const auto at = static_cast<size_t>(worst);
  check(false, std::string(what) + " number " + std::to_string(worst) + " is " + std::to_string(found[at]) +
                   ", expected " + std::to_string(expected.value[at]) + ", allowed " +
                   std::to_string(expected.bound[at]) + ": " + spec.name());
}

void checkCase(const ForwardSpec& spec, int ctas, bool byHeads, bool rank, Maps content) {
  ForwardCase test(spec);
  const Results results = run(test, ctas, byHeads, rank, content);
  test.computeExpected();
  compare("output", spec, test.out, toDoubles(results.out, spec.type));
  if (!results.finalState.empty()) compare("final state", spec, test.finalState, toDoubles(results.finalState));
  if (!results.saved.empty()) {
    const std::vector<float> zeros(results.saved.size());
    check(results.saved == (spec.initial ? test.initial : zeros), "saved initial state: " + spec.name());
  }
  if (!rank) return;
  compare("state of the rank", spec, test.rankState, toDoubles(results.rankState));
  std::vector<double> transitions = toDoubles(results.rankLogDecay);
  for (std::vector<double>* numbers : {&transitions, &test.rankLogDecay.value}) {
    for (double& number : *numbers) {
      if (number < -87.3) number = -std::numeric_limits<double>::infinity();
    }
  }
  compare("log-decay of the rank", spec, test.rankLogDecay, transitions);
}

ForwardSpec drawSpec(std::mt19937_64& random) {
  static constexpr int kDimensions[][2] = {{64, 64},   {128, 128}, {128, 128}, {256, 256}, {16, 16},
                                           {48, 80},   {96, 112},  {128, 64},  {64, 128},  {128, 256},
                                           {192, 160}, {128, 528}, {256, 512}, {256, 64},  {144, 96}};
  static constexpr int kTokens[] = {0, 1, 2, 15, 16, 17, 63, 64, 65, 127, 500, 1000, 2041};
  ForwardSpec spec;
  const auto& dimensions = kDimensions[random() % std::size(kDimensions)];
  spec.dk = dimensions[0];
  spec.dv = dimensions[1];
  spec.type = random() % 8 == 0 ? seqparFloat32 : (random() % 2 == 0 ? seqparFloat16 : seqparBfloat16);
  spec.gate = random() % 2 == 0 ? Gate::Channel : static_cast<Gate>(random() % 4);
  spec.gateType = spec.gate == Gate::Channel && random() % 3 == 0 ? seqparBfloat16 : seqparFloat32;
  spec.tokens = kTokens[random() % std::size(kTokens)];
  spec.heads = 1 << random() % 3;
  spec.qkHeads = random() % 2 == 0 ? spec.heads : 1;
  spec.batch = random() % 3 == 0 ? 2 : 1;
  spec.decays = static_cast<Decays>(random() % 7);
  spec.initial = random() % 2 == 0;
  spec.headsFirst = random() % 2 == 0;
  spec.segmentTokens = 64 * static_cast<int64_t>(1 + random() % 20);
  if (random() % 4 != 0) spec.leadTokens = 64 * static_cast<int64_t>(random() % 6);
  if (spec.batch == 1 && random() % 3 == 0) spec.sequences = 1 + static_cast<int>(random() % 9);
  spec.seed = random();
  return spec;
}

void useNan(std::vector<double>& numbers) {
  for (double& number : numbers) {
    if (std::isinf(number)) number = std::numeric_limits<double>::quiet_NaN();
  }
}
/// A decay of 0 forgets NaN and infinity; earlier tokens are not forgotten. With `packed`,
/// a sequence starts at such a token; otherwise its gates are -inf. `rank`: as in run().
void checkNotFinite(ForwardSpec spec, bool packed, bool rank, std::mt19937_64& random) {
  for (const float value : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    spec.seed = random();
    for (const int64_t start : {int64_t{0}, int64_t{5}, int64_t{40}, int64_t{64}, int64_t{150}}) {
      ForwardCase test(spec);
      for (float& number : test.initial) number = value;
      const auto forget = [&] { test.starts = {start}; };
      if (packed) forget();
      for (int i = 0; i < spec.heads * spec.dk && !packed; ++i) {
        const int64_t at = start * test.layout.gates.token + i / spec.dk * test.layout.gates.head + i % spec.dk;
        reinterpret_cast<float*>(test.gates.data())[at] = -std::numeric_limits<float>::infinity();
      }
      const Results results = run(test, 0, false, rank);
      if (!packed) forget();
      test.computeExpected();
      useNan(test.out.value);
      std::vector<double> found = toDoubles(results.out, spec.type);
      useNan(found);
      compare("output after a state that is not finite,", spec, test.out, found);
      compare("final state", spec, test.finalState, toDoubles(results.finalState));
    }
  }
}
void checkNotFinite(std::mt19937_64& random) {
  ForwardSpec spec;
  spec.tokens = 200;
  spec.segmentTokens = 64;
  for (const Gate gate : {Gate::Channel, Gate::Token}) {
    spec.dk = spec.dv = 128;
    spec.gate = gate;
    checkNotFinite(spec, true, true, random);
  }
  spec.gate = Gate::Channel;
  spec.dk = 256;
  spec.dv = 64;
  spec.heads = spec.qkHeads = 80;  // enough for a forward by heads
  checkNotFinite(spec, false, false, random);
}

/// The same bits each time, whatever the number of CTAs and of launches.
void checkRepeated(std::mt19937_64& random) {
  for (int i = 0; i < 6; ++i) {
    const ForwardCase test(drawSpec(random));
    const Results once = run(test, 0, false, true);
    check(run(test, 0, false, true).out == once.out, "the same twice: " + test.spec.name());
    check(run(test, 3, true, true).out == once.out, "the same by heads, with 3 CTAs: " + test.spec.name());
  }
}

/// Many short items per CTA of pass 1 with mostly forgotten chunks: the producer warpgroup is several items ahead of
/// the consumers.
void checkShortItems(std::mt19937_64& random) {
  static constexpr int64_t kTokens[] = {128, 192, 320, 512};
  for (const Gate gate : {Gate::Channel, Gate::Token}) {
    for (const int64_t tokens : kTokens) {
      ForwardSpec spec;
      spec.tokens = 2016;
      spec.heads = spec.qkHeads = 4;
      spec.dk = spec.dv = 128;
      spec.gate = gate;
      if (gate == Gate::Channel && random() % 2 == 0) spec.gateType = seqparBfloat16;
      spec.decays = random() % 2 == 0 ? Decays::Thirty : Decays::Strong;
      spec.segmentTokens = tokens;
      spec.seed = random();
      ForwardCase test(spec);
      const Results many = run(test, 0, false, true);
      for (const int ctas : {1, 5}) {
        for (int again = 0; again < 3; ++again) {
          check(run(test, ctas, false, true) == many, "many items a CTA: " + spec.name());
        }
      }
      test.computeExpected();
      compare("output of many items a CTA,", spec, test.out, toDoubles(many.out, spec.type));
      compare("final state", spec, test.finalState, toDoubles(many.finalState));
      compare("state of the rank", spec, test.rankState, toDoubles(many.rankState));
    }
  }
}

/// Enough heads for a forward by states of chunks, or by heads.
void checkManyHeads(std::mt19937_64& random) {
  // dk, dv, heads
  static constexpr int kDimensions[][3] = {{256, 64, 64}, {144, 128, 64}, {192, 64, 40}, {256, 128, 40},
                                           {128, 64, 64}, {112, 80, 64},  {80, 64, 64}};
  static constexpr int kShapes = static_cast<int>(std::size(kDimensions));
  static constexpr int64_t kTokens[] = {1, 130, 500};
  for (int i = onlyChannel ? 3 * kShapes : 0; i < (parts > 0 ? 3 : 4) * kShapes; ++i) {
    ForwardSpec spec;
    const auto& [dk, dv, heads] = kDimensions[i % kShapes];
    spec.dk = dk, spec.dv = dv, spec.heads = heads;
    spec.qkHeads = 1 << random() % 4;
    spec.batch = 2;
    spec.gate = static_cast<Gate>(i / kShapes);
    spec.tokens = kTokens[random() % std::size(kTokens)];
    spec.decays = static_cast<Decays>(random() % 7);
    spec.initial = random() % 2 == 0;
    spec.headsFirst = random() % 2 == 0;
    spec.segmentTokens = 192;
    spec.seed = random();
    spec.inputGates = spec.gate != Gate::Channel && i % 2 == 0;
    const int ctas = random() % 2 == 0 ? 0 : 5;
    if (parts == 0 || i % parts == part) checkCase(spec, ctas, false, false, Maps::PerSegment);
  }
}

/// Heads for about half of the SMs: a forward by heads divides them.
void checkDividedHeads(std::mt19937_64& random) {
  static constexpr int kKeys[] = {128, 256, 80, 208};
  for (int i = onlyChannel ? 9 : 0; i < (parts > 0 ? 9 : 12); ++i) {
    const Gate gate = static_cast<Gate>(i / 3);
    ForwardSpec spec;
    spec.dk = kKeys[i % 4];
    spec.dv = 64;
    spec.heads = gate == Gate::Channel ? 40 : random() % 2 == 0 ? 80 : 64;
    spec.qkHeads = 1 << random() % 4;
    spec.gate = gate;
    spec.tokens = 2050;
    spec.decays = static_cast<Decays>(random() % 7);
    spec.initial = random() % 2 == 0;
    spec.headsFirst = random() % 2 == 0;
    spec.segmentTokens = 512;
    spec.seed = random();
    spec.inputGates = spec.gate != Gate::Channel && i % 2 == 0;
    if (parts == 0 || i % parts == part) checkCase(spec, 0, false, false, Maps::PerSegment);
  }
}

void checkRefused() {
  LinearProblem problem;
  problem.heads = problem.qkHeads = 1;
  problem.dk = problem.dv = 24;
  SegmentStates pass;
  pass.problem = problem;
  pass.heads = {0, 1};
  check(launchSegmentStates(pass, {}) == cudaErrorInvalidValue, "dk of 24 is refused");
  pass.problem.dk = pass.problem.dv = 64;
  pass.heads = {0, 2};
  check(launchSegmentStates(pass, {}) == cudaErrorInvalidValue, "a head too many is refused");
}

}  // namespace

int main(int argc, char** argv) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::printf("skipped: no GPU\n");
    return 77;
  }
  std::uint64_t seed = seqpar::test::drawSeed();
  int cases = 200;
  bool small = false;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--seed") == 0 && i + 1 < argc) seed = std::strtoull(argv[i + 1], nullptr, 10);
    if (std::strcmp(argv[i], "--cases") == 0 && i + 1 < argc) cases = std::atoi(argv[i + 1]);
    if (std::strcmp(argv[i], "--small") == 0) small = true;
    if (std::strcmp(argv[i], "--channel") == 0) onlyChannel = true;
    if (std::strcmp(argv[i], "--heads") == 0 && i + 2 < argc) part = std::atoi(argv[i + 1]);
    if (std::strcmp(argv[i], "--heads") == 0 && i + 2 < argc) parts = std::atoi(argv[i + 2]);
  }
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  std::mt19937_64 random(seed);
  for (int i = 0; i < (parts > 0 ? 0 : cases) && failures <= 20; ++i) {
    ForwardSpec spec = drawSpec(random);
    if (small) spec.tokens = std::min<int64_t>(spec.tokens, 127);
    checkCase(spec, random() % 2 == 0 ? 0 : 5, random() % 4 == 0, random() % 4 != 0,
              random() % 2 == 0 ? Maps::PerSegment : Maps::Prefix);
  }
  checkRefused();
  if (!small) checkManyHeads(random), checkDividedHeads(random);
  small = small || parts > 0;
  if (!small) checkShortItems(random);
  if (!small) checkNotFinite(random);
  if (!small) checkRepeated(random);
  std::printf("%d checks, %d failed, largest error %.2f of what is allowed\n", checks, failures, largest);
  return failures == 0 ? 0 : 1;
}
