#include "compute.h"

#include <algorithm>
#include <chrono>
#include <limits>

#include "common/statistics.h"

namespace seqpar::perf {
namespace {

void compute(long rounds) {
  volatile double sink = 0;
  double a = 1, b = 2, c = 3, d = 4;
  for (long i = 0; i < rounds; ++i) {
    a = a * 0.9999 + 0.1;
    b = b * 0.9998 + 0.1;
    c = c * 0.9997 + 0.1;
    d = d * 0.9996 + 0.1;
  }
  sink = a + b + c + d;
  static_cast<void>(sink);
}

double probeUs(long rounds, [[maybe_unused]] Session& session) {
#ifdef SEQPAR_PERF_CUDA
  if (Gpu* const gpu = session.group.gpu()) {
    return gpu->elapsedUs([&] { computeOnGpu(rounds, session.stream); });
  }
#endif
  const auto start = std::chrono::steady_clock::now();
  compute(rounds);
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

void Computation::run(const Session& session) {
  if (rounds_ == 0) return;
#ifdef SEQPAR_PERF_CUDA
  if (session.group.gpu() != nullptr) return computeOnGpu(rounds_, session.stream);
#endif
  if (session.stream == nullptr) return compute(rounds_);
  require(seqparStreamLaunch(
              static_cast<seqparStream_t>(session.stream),
              [](void* argument) { compute(*static_cast<const long*>(argument)); }, &rounds_),
          "seqparStreamLaunch");
}

void Computation::runHere() const {
  compute(rounds_);
}

long roundsFor(double us, Session& session) {
  // The difference of two times cancels the startup time.
  constexpr long kProbe = 200000;
  double shorter = std::numeric_limits<double>::infinity(), longer = shorter;
  for (int i = 0; i < 5; ++i) {
    shorter = std::min(shorter, probeUs(kProbe, session));
    longer = std::min(longer, probeUs(2 * kProbe, session));
  }
  const double mine = (longer - shorter) / kProbe;
  return static_cast<long>(us / combine(session.group.gather(std::span(&mine, 1)), Average::Most));
}

}  // namespace seqpar::perf
