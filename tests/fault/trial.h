// A trial of the campaign, drawn from its seed.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace seqpar::test {

enum class Fault { Kill, Abort, Stop, Pause, Leave, Memory, Descriptors };
inline constexpr std::array kFaultNames{"SIGKILL",         "abort()",   "SIGSTOP",       "SIGSTOP, SIGCONT in time",
                                        "seqparCommAbort", "no memory", "no descriptors"};

struct Trial {
  explicit Trial(uint64_t number);

  bool isVictim(int rank) const;
  bool is(Fault one) const { return fault == one; }
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
  bool shrinks = false;  ///< the survivors shrink, else create a communicator with a new id
  std::vector<int> victims;
};

}  // namespace seqpar::test
