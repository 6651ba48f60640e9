// A communicator and those that succeed it after failures: the ranks' addresses, a thread that votes, and the result.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/health.h"
#include "bootstrap/bootstrap.h"
#include "bootstrap/descriptor.h"
#include "bootstrap/process_identity.h"
#include "bootstrap/succession.h"
#include "bootstrap/vote_links.h"

namespace seqpar {

/// What the ranks gather of each other. Trivially copyable.
struct LineageCard {
  seqparUniqueId address{};  ///< zeros: the rank cannot listen
  ProcessIdentity process;
};

/// The next communicator.
struct Successor {
  uint32_t epoch = 0;
  std::vector<int> members;         ///< ranks of the first communicator, ascending
  seqparUniqueId meeting{};         ///< for joinRendezvous()
  std::shared_ptr<Health> joining;  ///< fails if a member is lost before all have joined
};

/// Without failures it has a listening socket and no thread. Ranks are those of the first communicator.
class Lineage {
 public:
  /// Listens. Gather card() of all ranks, then call connect().
  Lineage(int rank, int size, const ControlOptions& options);
  ~Lineage();
  Lineage(const Lineage&) = delete;
  Lineage& operator=(const Lineage&) = delete;

  LineageCard card() const;
  void connect(const std::vector<LineageCard>& cards, const Token& secret);

  /// Starts the thread, which answers other ranks from then on. Any thread.
  void serve() noexcept;

  /// Waits for the decision about the successor of the communicator of `epoch`, or of a later one that could not be
  /// created. Throws RemoteError ("no quorum", "excluded", no decision in time), InvalidUsage if a later one exists.
  Successor agree(uint32_t epoch, std::chrono::milliseconds timeout);

  /// The communicator of `epoch` exists on this rank. `lose` ends it, and is called in the lineage's thread once
  /// another rank votes about its successor.
  void enter(uint32_t epoch, std::function<void(const std::string&)> lose);
  /// It has ended. If it is the newest, this rank takes no part in votes any more.
  void leave(uint32_t epoch);

 private:
  using Time = Vote::Time;

  void run() noexcept;
  void end(const char* why) noexcept;
  void wakeThread();
  bool busy() const;
  void advance();
  void observe(Time now);
  void failJoining(const std::string& why);
  void tellCommunicator();
  seqparUniqueId openMeeting();
  void endMeeting();
  std::optional<Successor> result(uint32_t epoch);

  const int rank_, size_;
  const ControlOptions options_;
  Listener listener_;
  Token secret_{};
  std::vector<ProcessIdentity> visible_;  ///< pid 0: this process cannot observe it

  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<VoteLinks> links_;  ///< used by the thread, without the mutex
  std::optional<Succession> votes_;
  std::string ended_;                      ///< why the thread has ended
  std::shared_ptr<Health> joining_;        ///< of the successor that is being created
  std::optional<uint32_t> current_;        ///< epoch of the newest communicator on this rank
  std::optional<seqparUniqueId> meeting_;  ///< that this rank has opened
  bool stopping_ = false;
  std::optional<Wake> wake_;  ///< of the thread

  std::mutex loseMutex_;  ///< held during the call
  std::function<void(const std::string&)> lose_;
  uint32_t loseEpoch_ = 0;

  std::optional<Worker> worker_;
};

}  // namespace seqpar
