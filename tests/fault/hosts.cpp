#include "hosts.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace seqpar::test {
namespace {

void require(bool condition, const char* what) {
  if (condition) return;
  std::perror(what);
  _exit(2);
}

void enter(pid_t keeper) {
  constexpr std::array kSpaces{"net", "uts", "ipc", "pid_for_children", "mnt"};
  std::array<int, kSpaces.size()> files{};
  for (size_t i = 0; i < kSpaces.size(); ++i) {
    const std::string path = "/proc/" + std::to_string(keeper) + "/ns/" + kSpaces[i];
    files[i] = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    require(files[i] >= 0, path.c_str());
  }
  for (const int file : files) {
    require(setns(file, 0) == 0, "setns");
    close(file);
  }
}

}  // namespace

Hosts::Hosts(const std::string& description) {
  const bool good =
      std::sscanf(description.c_str(), "%d,%d,%d,%d", &keepers_[0], &keepers_[1], &commands_, &answers_) == 4;
  require(good, "--hosts PID,PID,COMMANDS,ANSWERS");
  require(prctl(PR_SET_CHILD_SUBREAPER, 1) == 0, "PR_SET_CHILD_SUBREAPER");
}

pid_t Hosts::fork(int host) const {
  // Only children of a process that enters a namespace of processes are in it, so there is a process in between.
  int numbers[2], adopted[2];
  require(pipe2(numbers, O_CLOEXEC) == 0 && pipe2(adopted, O_CLOEXEC) == 0, "pipe2");
  const pid_t between = ::fork();
  require(between >= 0, "fork");
  if (between == 0) {
    enter(keepers_[static_cast<size_t>(host)]);
    const pid_t child = ::fork();
    require(child >= 0, "fork");
    if (child > 0) {
      require(write(numbers[1], &child, sizeof(child)) == sizeof(child), "write");
      _exit(0);
    }
    close(numbers[0]);
    close(numbers[1]);
    close(adopted[1]);
    char byte = 0;
    [[maybe_unused]] const auto end = read(adopted[0], &byte, 1);
    close(adopted[0]);
    return 0;
  }
  pid_t child = -1;
  require(read(numbers[0], &child, sizeof(child)) == sizeof(child), "read");
  waitpid(between, nullptr, 0);
  for (const int file : {numbers[0], numbers[1], adopted[0], adopted[1]}) close(file);
  return child;
}

void Hosts::command(const char* line) const {
  require(write(commands_, line, std::strlen(line)) == static_cast<ssize_t>(std::strlen(line)), "relay");
  char byte = 0;
  while (read(answers_, &byte, 1) == 1 && byte != '\n') {
  }
  require(byte == '\n', "relay");
}

}  // namespace seqpar::test
