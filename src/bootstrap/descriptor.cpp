#include "bootstrap/descriptor.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <system_error>

#include "base/error.h"

namespace seqpar {
namespace {

// One bit per owned descriptor: a fork handler may neither lock nor allocate. Larger numbers are not tracked.
constexpr int kTracked = 65536;
std::array<std::atomic<uint64_t>, kTracked / 64> owned{};

void mark(int number, bool on) {
  if (number < 0 || number >= kTracked) return;
  const uint64_t bit = uint64_t{1} << (number % 64);
  auto& word = owned[static_cast<size_t>(number / 64)];
  if (on) {
    word.fetch_or(bit);
  } else {
    word.fetch_and(~bit);
  }
}

// The numbers stay open, so the destructors of the child's copies close no other files.
void detachInChild() {
  const int nothing = open("/dev/null", O_RDWR | O_CLOEXEC);
  for (size_t word = 0; word < owned.size(); ++word) {
    const uint64_t bits = owned[word].load();
    for (int bit = 0; bits >> bit != 0; ++bit) {
      if ((bits >> bit & 1) != 0 && nothing >= 0) dup3(nothing, static_cast<int>(word) * 64 + bit, O_CLOEXEC);
      if (bit == 63) break;
    }
  }
  if (nothing >= 0) close(nothing);
}

}  // namespace

Descriptor::Descriptor(int number) : number_(number) {
  [[maybe_unused]] static const int registered = pthread_atfork(nullptr, nullptr, detachInChild);
  mark(number, true);
}

void Descriptor::close() noexcept {
  if (number_ < 0) return;
  mark(number_, false);
  ::close(std::exchange(number_, -1));
}

Wake::Wake() : event_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!event_) failErrno("eventfd");
}

void Wake::signal() noexcept {
  const uint64_t one = 1;
  [[maybe_unused]] const auto written = write(event_.get(), &one, sizeof(one));
}

void Wake::clear() noexcept {
  uint64_t count = 0;
  [[maybe_unused]] const auto got = read(event_.get(), &count, sizeof(count));
}

Worker::Worker(std::function<void()> body) : process_(getpid()), body_(std::move(body)) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  const auto run = [](void* self) -> void* {
    static_cast<const Worker*>(self)->body_();
    return nullptr;
  };
  const int code = pthread_create(&thread_, nullptr, run, this);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (code != 0) fail(seqparSystemError, "cannot start a thread: ", std::generic_category().message(code));
}

Worker::~Worker() {
  if (exists()) pthread_join(thread_, nullptr);
}

bool Worker::exists() const {
  return process_ == getpid();
}

}  // namespace seqpar
