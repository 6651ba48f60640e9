// A rank's end of the star.
#pragma once

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <optional>

#include "bootstrap/call_sequence.h"
#include "bootstrap/control.h"
#include "bootstrap/handshake.h"
#include "bootstrap/server.h"
#include "bootstrap/socket.h"

namespace seqpar {

/// A rank's data when it joins a root.
struct JoinRequest {
  Token token{};
  int rank = 0;
  int nranks = 1;
  std::chrono::milliseconds timeout{0};
};

/// A connection to a root that all ranks have joined.
struct RootConnection {
  Descriptor socket;
  std::string root;   ///< description of the serving rank
  Sealer sealer;      ///< of further bytes to the root
  Opener opener;      ///< of further bytes from the root
  wire::Bytes early;  ///< further bytes that arrived with the answer
};

/// A connection that has proved to the root that it knows the token; the root has not answered yet.
struct ProvenConnection {
  Descriptor socket;
  Session session;
};

/// Sends `request` and the proof. Returns nothing if the root closes the connection.
std::optional<ProvenConnection> proveTo(Descriptor socket, const JoinRequest& request, const Health& health);

/// Waits until all ranks have arrived. Throws RemoteError with the root's reason if it refuses. Returns nothing if the
/// root closes without a reason, which it does for a wrong token and when its process ends.
std::optional<RootConnection> awaitAnswer(ProvenConnection connection, const JoinRequest& request,
                                          const Health& health);

/// proveTo() and awaitAnswer().
std::optional<RootConnection> joinRoot(Descriptor socket, const JoinRequest& request, const Health& health);

/// Connects and proves itself, or joins, within the request's timeout. A root that must drop unproven connections may
/// drop this one: tries again a few times, after random pauses.
std::optional<ProvenConnection> proveAt(const ConnectTarget& target, const JoinRequest& request, const Health& health);
std::optional<RootConnection> joinRootAt(const ConnectTarget& target, const JoinRequest& request, const Health& health);

/// Serves one rank's connection to the root, in a separate thread.
class Client final : public Control {
 public:
  /// `server` is the root itself, on the rank that runs it.
  Client(RootConnection connection, const JoinRequest& request, Health& health, std::unique_ptr<RootServer> server);
  ~Client() override;

  int rank() const override { return request_.rank; }
  int size() const override { return request_.nranks; }
  std::optional<Token> secret() const override { return request_.token; }
  void gather(std::span<const std::byte> mine, std::span<std::byte> all) override;
  void announce(const std::string& why) noexcept override;
  void leave() override;
  void report(const CallChain& chain) noexcept override { chain_.store(&chain); }
  void countCall() noexcept override { calls_.fetch_add(1, std::memory_order_relaxed); }
  void nextCall() noexcept override { sequenceOfCalls_.next(); }
  void communicate() noexcept override;
  void refuseCall(const std::string& why) override;
  std::string behind() override;

  /// Sends bye without waiting for the other ranks, which may still send their last gather.
  void part() noexcept;

 private:
  using Time = Deadline::Clock::time_point;

  void start();
  void run() noexcept;
  void announceEnd() noexcept;
  void endConnection() noexcept;
  void serve();
  void readAll();
  void handleAll();
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
  Sealer sealer_;
  Opener opener_;
  std::optional<Wake> wake_;

  // Used only by the thread.
  wire::FrameReader frames_{wire::kMaxResult};
  wire::Bytes sealed_;  // records that are not sent yet
  bool connected_ = true;
  Time heard_, sent_, lastRound_;
  uint64_t callsSent_ = 0;
  std::optional<CallReport> reportSent_;

  std::mutex mutex_;
  std::condition_variable changed_;
  wire::Bytes output_;
  uint32_t sequence_ = 0;
  std::optional<wire::Frame> result_;
  std::string behind_;
  const char* call_ = "";  ///< the public function that is waiting for the other ranks
  bool parting_ = false, allLeft_ = false, stopping_ = false;
  std::atomic<uint64_t> calls_{0};
  std::atomic<const CallChain*> chain_{nullptr};
  CallSequence sequenceOfCalls_;
  std::atomic<bool> reported_{false};  // the root knows of the failure
  std::atomic<bool> mute_{false};      // there is no memory to report it

  std::optional<Worker> worker_;
};

}  // namespace seqpar
