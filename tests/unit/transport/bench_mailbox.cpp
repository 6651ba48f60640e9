// Times the mailbox between processes: 8-byte half round trip between ranks 0 and 1, and streams of user memory ->
// message -> user memory, every even rank to the next odd one.
//
// bench_mailbox [ranks=2] [auto|network] [processors=ranks]
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "group.h"

namespace {

using namespace seqpar;
using namespace seqpar::testing;
using Clock = std::chrono::steady_clock;

double secondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

double halfRoundTrip(Member& member, int peer, bool first, int laps) {
  member.mail.begin("ping-pong", 0);
  const auto start = Clock::now();
  for (int lap = 0; lap < laps; ++lap) {
    if (first || lap != 0) {
      std::memset(member.mail.acquire(peer, 8).data, lap & 127, 8);
      member.mail.commit();
    }
    if (!first && lap == 0) {
      member.mail.receive(peer, 8);
      member.mail.release(peer);
      continue;
    }
    member.mail.receive(peer, 8);
    member.mail.release(peer);
  }
  if (!first) {
    std::memset(member.mail.acquire(peer, 8).data, 0, 8);
    member.mail.commit();
  }
  const double time = secondsSince(start);
  member.mail.end();
  return time / laps / 2;
}

double stream(Member& member, int peer, bool sends, std::vector<std::byte>& user, size_t block) {
  member.mail.begin("stream", 0);
  const auto start = Clock::now();
  for (size_t done = 0; done < user.size(); done += block) {
    const size_t part = std::min(block, user.size() - done);
    if (sends) {
      copyTo(member.mail.acquire(peer, part), user.data() + done, part);
      member.mail.commit();
    } else {
      std::memcpy(user.data() + done, member.mail.receive(peer, part), part);
      member.mail.release(peer);
    }
  }
  // An answer, so that the sender's time is the whole transfer.
  if (sends) {
    member.mail.receive(peer, 0);
    member.mail.release(peer);
  } else {
    member.mail.acquire(peer, 0);
    member.mail.commit();
  }
  const double time = secondsSince(start);
  member.mail.end();
  return time;
}

}  // namespace

int main(int argc, char** argv) {
  const int ranks = argc > 1 ? std::atoi(argv[1]) : 2;
  MailboxOptions options = optionsFor(ranks);
  if (argc > 2 && std::string(argv[2]) == "network") options.transport = seqparTransportNetwork;
  const int processors = argc > 3 ? std::atoi(argv[3]) : ranks;
  options.ownProcessors = ranks <= processors;

  Meeting meeting(ranks);
  std::vector<pid_t> processes;
  for (int rank = 0; rank < ranks; ++rank) {
    const pid_t process = fork();
    if (process != 0) {
      processes.push_back(process);
      continue;
    }
    pinTo(rank % processors);
    runMember(meeting, rank, options, [&](Member& member) {
      if (rank == 0) std::printf("%s %s\n", member.description.transport.c_str(), member.description.reason.c_str());
      const bool sends = rank % 2 == 0;
      const int peer = rank ^ 1;
      if (peer >= ranks) return;
      for (int repeat = 0; repeat < 5; ++repeat) {
        const double time = halfRoundTrip(member, peer, sends, 20000);
        if (rank == 0) std::printf("8 B half round trip %.3f us\n", time * 1e6);
      }
      for (const size_t total : {4, 16, 64, 256, 1024, 8192, 65536}) {
        std::vector<std::byte> user(total << 10, std::byte{1});
        for (const size_t block : {4, 8, 16, 32, 64, 128, 256}) {
          if (block > total) continue;
          double best = 1e9;
          std::vector<double> times;
          for (size_t repeat = 0; repeat < (total > 8192 ? 5 : 200); ++repeat) {
            times.push_back(stream(member, peer, sends, user, block << 10));
          }
          std::sort(times.begin(), times.end());
          best = times.front();
          const double size = static_cast<double>(user.size());
          if (rank == 0) {
            std::printf("%6zu KiB in blocks of %3zu KiB: best %6.2f median %6.2f GB/s\n", total, block,
                        size / best / 1e9, size / times[times.size() / 2] / 1e9);
          }
        }
      }
    });
    std::fflush(stdout);
    _exit(0);
  }
  int worst = 0;
  for (const pid_t process : processes) worst = std::max(worst, std::abs(join(process)));
  return worst;
}
