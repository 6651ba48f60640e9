// Ranks as processes that may share GPUs, since CUDA may serialize the streams of one process.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdio>
#include <functional>
#include <optional>
#include <vector>

#include "bounds.h"
#include "common/ranks.h"

namespace seqpar::test {

/// Ids of communicators, from the parent process (which never uses CUDA) to each rank.
using Ids = std::array<seqparUniqueId, 2>;

/// Runs body(rank, ids) in `ranks` new processes; each lives at most `seconds` of an idle machine. An exception is
/// printed and counts as status 1. Returns the largest status; `victim` must be killed, which counts as 0.
inline int onProcesses(int ranks, unsigned seconds, std::optional<int> victim,
                       const std::function<int(int rank, const Ids& ids)>& body) {
  struct Child {
    pid_t process;
    int orders;
  };
  std::vector<Child> children;
  // Measured here, so that the ranks inherit it and have the same timeouts.
  const auto limit = static_cast<unsigned>(patience(std::chrono::seconds(seconds)).count() / 1000);
  std::fflush(stdout);
  for (int rank = 0; rank < ranks; ++rank) {
    std::array<int, 2> ends{};
    expect(pipe(ends.data()) == 0, "pipe failed");
    const pid_t process = fork();
    expect(process >= 0, "fork failed");
    if (process > 0) {
      close(ends[0]);
      children.push_back({process, ends[1]});
      continue;
    }
    close(ends[1]);
    alarm(limit);
    Ids ids{};
    int status = 1;
    try {
      expect(read(ends[0], ids.data(), sizeof(ids)) == static_cast<ssize_t>(sizeof(ids)), "no orders came");
      status = body(rank, ids);
    } catch (const std::exception& error) {
      std::printf("rank %d: %s\n", rank, error.what());
    }
    std::fflush(stdout);
    _exit(status);
  }
  Ids ids{};
  for (auto& id : ids) expectSuccess(seqparGetUniqueId(&id), "seqparGetUniqueId");
  for (const auto& child : children) {
    expect(write(child.orders, ids.data(), sizeof(ids)) == static_cast<ssize_t>(sizeof(ids)), "write failed");
    close(child.orders);
  }
  int worst = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    int status = 0;
    waitpid(children[static_cast<std::size_t>(rank)].process, &status, 0);
    const bool killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
    const int result = WIFEXITED(status) ? WEXITSTATUS(status) : 1;
    worst = std::max(worst, victim == rank ? !killed : result);
    if (victim != rank && !WIFEXITED(status)) std::printf("rank %d ended by signal %d\n", rank, WTERMSIG(status));
  }
  return worst;
}

}  // namespace seqpar::test
