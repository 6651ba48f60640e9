// A rank's end of the star.
#pragma once

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <optional>

#include "bootstrap/control.h"
#include "bootstrap/server.h"
#include "bootstrap/socket.h"

namespace seqpar {

/// What a rank says of itself when it joins a root.
struct JoinRequest {
  Token token{};
  int rank = 0;
  int nranks = 1;
  std::chrono::milliseconds timeout{0};
};

/// A connection to a root at which all ranks have arrived.
struct RootConnection {
  Descriptor socket;
  std::string root;  ///< who serves, in words
};

/// Presents `request` and waits until all ranks have arrived. RemoteError with the root's reason if it refuses; nothing
/// if it closes without one, as it does for a wrong token and when its process ends.
std::optional<RootConnection> joinRoot(Descriptor socket, const JoinRequest& request, const Health& health);

/// Serves one rank's connection to the root with a thread of its own.
class Client final : public Control {
 public:
  /// `server` is the root itself, on the rank that runs it for itself.
  Client(RootConnection connection, const JoinRequest& request, Health& health, std::unique_ptr<RootServer> server);
  ~Client() override;

  int rank() const override { return request_.rank; }
  int size() const override { return request_.nranks; }
  void gather(std::span<const std::byte> mine, std::span<std::byte> all) override;
  void announce(const std::string& why) noexcept override;
  void leave() override;
  void countCall() noexcept override { calls_.fetch_add(1, std::memory_order_relaxed); }
  std::string behind() override;

  /// Says bye and does not wait for the others, who may still gather nothing more.
  void part() noexcept;

 private:
  using Time = Deadline::Clock::time_point;

  void run() noexcept;
  void serve();
  void readAll();
  void handle(wire::Frame frame);
  void writeAll(Time now);
  void watch(Time now);
  void lose(const std::string& how);
  template <typename Done>
  void await(std::unique_lock<std::mutex>& lock, Done done);

  const JoinRequest request_;
  const std::string rootName_;
  Health& health_;
  std::unique_ptr<RootServer> server_;  // ends after this rank's connection
  Descriptor socket_;
  Wake wake_;

  // The thread's own.
  wire::FrameReader frames_{wire::kMaxResult};
  bool connected_ = true;
  Time heard_, sent_, lastRound_;
  uint64_t callsSent_ = 0;

  std::mutex mutex_;
  std::condition_variable changed_;
  wire::Bytes output_;
  uint32_t sequence_ = 0;
  std::optional<wire::Frame> result_;
  std::string behind_;
  const char* call_ = "";  ///< the public function that waits for the other ranks
  bool parting_ = false, allLeft_ = false, stopping_ = false;
  std::atomic<uint64_t> calls_{0};
  std::atomic<bool> told_{false};  // the failure is known to the root

  std::optional<Worker> worker_;
};

}  // namespace seqpar
