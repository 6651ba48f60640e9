// relay PID_A PID_B DEVICE DELAY_US LOSS_PERMILLE
// A cable between the network namespaces of two processes: a tun device in each, and a process that carries packets
// from one to the other, late and with losses. Commands on stdin: "cut" loses everything, "heal" ends that; each is
// answered by a line. Ends with stdin.
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <deque>
#include <exception>
#include <iostream>
#include <random>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

class Descriptor {
 public:
  /// Throws if `number`, which `call` has returned, is none.
  Descriptor(int number, const std::string& call) : number_(number) {
    if (number < 0) throw std::system_error(errno, std::generic_category(), call);
  }
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor&&) = delete;
  ~Descriptor() {
    if (number_ >= 0) close(number_);
  }
  int get() const { return number_; }

 private:
  int number_;
};

/// A new tun device in the network namespace of process `pid`. The caller stays in that namespace.
Descriptor makeDevice(const std::string& pid, const std::string& name) {
  const std::string path = "/proc/" + pid + "/ns/net";
  const Descriptor space(open(path.c_str(), O_RDONLY | O_CLOEXEC), path);
  if (setns(space.get(), CLONE_NEWNET) != 0) throw std::system_error(errno, std::generic_category(), "setns " + path);
  Descriptor device(open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC), "/dev/net/tun");
  ifreq request{};
  request.ifr_flags = IFF_TUN | IFF_NO_PI;
  name.copy(request.ifr_name, sizeof(request.ifr_name) - 1);
  if (ioctl(device.get(), TUNSETIFF, &request) != 0) {
    throw std::system_error(errno, std::generic_category(), "TUNSETIFF " + name);
  }
  return device;
}

class Relay {
 public:
  Relay(std::array<Descriptor, 2> ends, std::chrono::microseconds delay, unsigned lossPermille)
      : ends_(std::move(ends)), delay_(delay), lossPermille_(lossPermille) {}

  /// Returns when stdin has ended.
  void run() {
    while (true) {
      deliver();
      std::array<pollfd, 3> waiting{
          {{ends_[0].get(), POLLIN, 0}, {ends_[1].get(), POLLIN, 0}, {STDIN_FILENO, POLLIN, 0}}};
      const auto pause = std::chrono::nanoseconds(timeToNext()).count();
      const timespec most{pause / 1000000000, pause % 1000000000};
      ppoll(waiting.data(), waiting.size(), &most, nullptr);
      for (size_t end = 0; end < 2; ++end) {
        if (waiting[end].revents != 0) take(end);
      }
      if (waiting[2].revents != 0 && !obey()) return;
    }
  }

 private:
  struct Packet {
    Clock::time_point due;
    std::vector<char> bytes;
  };

  Clock::duration timeToNext() const {
    Clock::duration least = std::chrono::seconds(1);
    for (const auto& queue : queues_) {
      if (!queue.empty()) least = std::min(least, queue.front().due - Clock::now());
    }
    return std::max(least, Clock::duration::zero());
  }

  /// Delivers the packets that are due.
  void deliver() {
    for (size_t end = 0; end < 2; ++end) {
      auto& queue = queues_[end];
      for (; !queue.empty() && queue.front().due <= Clock::now(); queue.pop_front()) {
        const auto& bytes = queue.front().bytes;
        // A full device loses packets, as a full network does.
        if (write(ends_[1 - end].get(), bytes.data(), bytes.size()) < 0) ++lost_;
      }
    }
  }

  /// Takes packets from `end`, a limited number so that the other end and the commands get their turn.
  void take(size_t end) {
    std::array<char, 70000> bytes;
    for (int left = 64; left > 0; --left) {
      const auto count = read(ends_[end].get(), bytes.data(), bytes.size());
      if (count <= 0) return;
      if (cut_ || random_() % 1000 < lossPermille_) {
        ++lost_;
      } else {
        queues_[end].push_back({Clock::now() + delay_, {bytes.data(), bytes.data() + count}});
      }
    }
  }

  /// Follows one command; false at the end.
  bool obey() {
    std::string command;
    if (!std::getline(std::cin, command)) return false;
    if (command == "cut") {
      cut_ = true;
      lost_ = 0;
      for (auto& queue : queues_) queue.clear();
    } else if (command == "heal") {
      cut_ = false;
    }
    std::cout << command << ", " << lost_ << " packets lost" << std::endl;
    return true;
  }

  std::array<Descriptor, 2> ends_;
  const Clock::duration delay_;
  const unsigned lossPermille_;
  std::array<std::deque<Packet>, 2> queues_;  ///< by the end that sent the packets
  std::mt19937 random_{std::random_device{}()};
  bool cut_ = false;
  long lost_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 6) {
    std::fprintf(stderr, "usage: relay PID_A PID_B DEVICE DELAY_US LOSS_PERMILLE\n");
    return 2;
  }
  try {
    std::array<Descriptor, 2> ends{makeDevice(argv[1], argv[3]), makeDevice(argv[2], argv[3])};
    // Optional: keeps the delay accurate while ranks are busy; may be refused.
    const sched_param priority{50};
    sched_setscheduler(0, SCHED_FIFO, &priority);
    std::cout << "ready" << std::endl;
    Relay(std::move(ends), std::chrono::microseconds(std::atol(argv[4])), static_cast<unsigned>(std::atol(argv[5])))
        .run();
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "relay: %s\n", error.what());
    return 1;
  }
}
