// Ranks on two hosts that one machine plays: the namespaces of two processes, and a cable between them that can be cut
// (tests/net/campaign.sh makes both).
#pragma once

#include <sys/types.h>

#include <array>
#include <string>

namespace seqpar::test {

class Hosts {
 public:
  /// `description`: "PID,PID,COMMANDS,ANSWERS" with the processes that own the hosts' namespaces and the file
  /// descriptors of the relay. The calling process adopts the processes of fork().
  explicit Hosts(const std::string& description);

  /// As fork(), but the child is on a host: 0 or 1.
  pid_t fork(int host) const;
  void cut() const { command("cut\n"); }
  void heal() const { command("heal\n"); }

 private:
  void command(const char* line) const;

  std::array<pid_t, 2> keepers_{};
  int commands_ = -1, answers_ = -1;
};

}  // namespace seqpar::test
