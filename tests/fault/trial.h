// A trial of the campaign, drawn from its seed.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace seqpar::test {

enum class Fault { Kill, Abort, Stop, Pause, Leave, Memory, Descriptors, Cut, ShortCut, KillHost };
inline constexpr std::array kFaultNames{
    "SIGKILL",   "abort()",        "SIGSTOP",  "SIGSTOP, SIGCONT in time", "seqparCommAbort",
    "no memory", "no descriptors", "link cut", "link cut, healed in time", "SIGKILL, two hosts"};

struct Trial {
  /// `onHosts`: the ranks are on two hosts.
  Trial(uint64_t number, bool onHosts);

  bool isVictim(int rank) const;
  bool is(Fault one) const { return fault == one; }
  /// The timeout decides when ranks notice the fault.
  bool stops() const { return is(Fault::Stop) || is(Fault::Cut); }
  /// No rank may notice the fault.
  bool harmless() const { return is(Fault::Pause) || is(Fault::ShortCut); }
  /// The victims live and fail by themselves.
  bool runsOut() const { return is(Fault::Memory) || is(Fault::Descriptors); }
  std::vector<int> survivors() const;
  /// The members of the new communicator.
  std::vector<int> members() const;
  /// Whether `living` are right members after a shrink: a rank that ran out of memory may have left.
  bool mayRemain(const std::vector<int>& living) const;

  uint64_t seed;
  int ranks = 2, delayUs = 0, leaveAfter = 0, slackKib = 0;
  Fault fault = Fault::Kill;
  bool shrinks = false;      ///< the survivors shrink, else create a communicator with a new id
  std::vector<int> victims;  ///< of a cut: the smaller side
  std::vector<int> hosts;    ///< of each rank: 0 or 1
};

}  // namespace seqpar::test
