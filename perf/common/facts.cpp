#include "facts.h"

#include <unistd.h>

#include <array>
#include <ctime>

#include "timing.h"

namespace seqpar::perf {

RunFacts gatherFacts(const std::string& program, const std::vector<std::string>& arguments, const Settings& settings,
                     Group& group) {
  RunFacts facts;
  facts.program = program;
  facts.arguments = arguments;
  facts.started = timestamp();
  require(seqparGetVersion(&facts.version), "seqparGetVersion");
  require(seqparCommQuery(group.comm(), &facts.comm), "seqparCommQuery", group.comm());
  std::array<char, 256> host{};
  gethostname(host.data(), host.size() - 1);
  const auto hosts = group.gatherText(host.data());
  const auto transports = group.gatherText(facts.comm.transport);
  const auto names = group.gatherText(group.gpu() == nullptr ? "device host" : group.gpu()->name());
  const std::array<double, 2> numbers{static_cast<double>(getpid()), static_cast<double>(facts.comm.device)};
  const std::vector<double> all = group.gather(std::span<const double>(numbers));
  for (size_t r = 0; r < hosts.size(); ++r) {
    facts.ranks.push_back(
        {static_cast<int>(all[2 * r]), static_cast<int>(all[2 * r + 1]), hosts[r], names[r], transports[r]});
  }
  facts.barrierUs = barrierUs(group, settings);
  if (group.gpu() != nullptr) {
    facts.limits = group.gpu()->limits();
    facts.sharing = group.gpu()->sharing();
  }
  constexpr std::array<const char*, 4> kAverages{"rank 0", "the mean of the ranks", "the fastest rank",
                                                 "the slowest rank"};
  constexpr std::array<const char*, 4> kWaits{"through a stream", "waiting after each operation for all ranks",
                                              "waiting after each operation", "waiting after each iteration"};
  facts.average = kAverages[static_cast<size_t>(settings.average)];
  facts.how = settings.graph()           ? "a CUDA graph of each loop"
              : settings.blockingCalls() ? "blocking calls"
                                         : kWaits[static_cast<size_t>(settings.blocking)];
  facts.mode = settings.barrier ? "one iteration after a barrier (isolated latency)"
                                : "mean over a loop without barriers (iterations may overlap between ranks)";
  if (settings.cpuTime) facts.how += ", until the calls have returned";
  return facts;
}

std::string timestamp() {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  std::array<char, 32> text{};
  std::strftime(text.data(), text.size(), "%Y-%m-%d %H:%M:%S", &local);
  return text.data();
}

}  // namespace seqpar::perf
