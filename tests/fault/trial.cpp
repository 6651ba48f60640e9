#include "trial.h"

#include <algorithm>
#include <numeric>
#include <random>

#include "common/sanitized.h"

namespace seqpar::test {
namespace {

Fault drawFault(int drawn) {
  // Half of the trials kill; stops cost their timeout.
  if (drawn < 20) return Fault::Kill;
  if (drawn < 26) return Fault::Abort;
  if (drawn < 28) return Fault::Stop;
  if (drawn < 31) return Fault::Pause;
  if (drawn < 35) return Fault::Leave;
#ifdef SEQPAR_SANITIZED
  return Fault::Kill;  // sanitizers end a process without memory, and misread memory without descriptors
#else
  return drawn < 38 ? Fault::Memory : Fault::Descriptors;
#endif
}

Fault drawFaultOfHosts(int drawn) {
  if (drawn < 16) return Fault::Cut;
  return drawn < 28 ? Fault::ShortCut : Fault::KillHost;
}

}  // namespace

Trial::Trial(uint64_t number, bool onHosts) : seed(number) {
  std::mt19937_64 random(seed);
  const auto below = [&](int end) { return static_cast<int>(random() % static_cast<uint64_t>(end)); };
  ranks = 2 + below(4);
  const int drawn = below(40);
  fault = onHosts ? drawFaultOfHosts(drawn) : drawFault(drawn);
  if (is(Fault::Cut)) ranks = 3 + below(3);  // one side has the majority
  const bool kills = is(Fault::Kill) || is(Fault::Abort) || is(Fault::KillHost);
  int left = kills ? 1 + (below(3) == 0 ? below(ranks - 1) : 0) : 1;
  for (; left > 0; --left) {
    int victim = below(ranks);
    while (isVictim(victim)) victim = (victim + 1) % ranks;
    victims.push_back(victim);
  }
  delayUs = below(30000);
  leaveAfter = below(30);
  slackKib = below(8192);
  // Half of two ranks cannot decide while the other one is silent.
  shrinks = below(2) == 0 && (fault != Fault::Stop || ranks > 2);
  if (!onHosts) return;
  // The ranks of a host are neighbors, as the algorithm HIER needs.
  int first = 1 + below(ranks - 1);
  if (is(Fault::Cut) && 2 * first == ranks) ++first;  // neither half could go on
  for (int rank = 0; rank < ranks; ++rank) hosts.push_back(rank < first ? 0 : 1);
  if (!is(Fault::Cut)) return;
  shrinks = true;
  victims.clear();
  for (int rank = 0; rank < ranks; ++rank) {
    if ((rank < first) == (2 * first < ranks)) victims.push_back(rank);
  }
}

bool Trial::isVictim(int rank) const {
  return std::find(victims.begin(), victims.end(), rank) != victims.end();
}

std::vector<int> Trial::survivors() const {
  std::vector<int> all;
  for (int rank = 0; rank < ranks; ++rank) {
    if (!isVictim(rank)) all.push_back(rank);
  }
  return all;
}

std::vector<int> Trial::members() const {
  if (!runsOut() || !shrinks) return survivors();
  std::vector<int> all(static_cast<size_t>(ranks));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

bool Trial::mayRemain(const std::vector<int>& living) const {
  return living == members() || (runsOut() && living == survivors());
}

}  // namespace seqpar::test
