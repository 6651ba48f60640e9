// Messages through UCX to the ranks that share no memory with this one.
//
// A send is synchronous in UCX's sense: it completes when the receiver has taken the message into memory of its own, so
// completions are the flow control. While the rank is inside an operation its own thread moves the messages; while it
// rests, a thread that sleeps on the worker's event descriptor does.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/deadline.h"
#include "base/health.h"
#include "bootstrap/allgather.h"
#include "transport/segment.h"
#include "transport/ucx.h"

namespace seqpar {

class Network {
 public:
  /// Collective over `control`: connects the ranks r with peers[r] (which must be symmetric), and returns when messages
  /// have gone both ways; null on a rank without peers. `health` fails when a peer's process or connection dies.
  static std::unique_ptr<Network> connect(Allgather& control, const std::vector<bool>& peers, Health& health,
                                          std::chrono::milliseconds timeout);

  /// Not connected; see connect().
  Network(int rank, Health& health);
  Network(const Network&) = delete;
  Network& operator=(const Network&) = delete;
  /// Lets sends finish and tells the peers of an orderly end, unless the communicator has failed; waits briefly.
  ~Network();

  /// The rank's own thread takes over from the one that moves messages, or hands over to it.
  void resume() noexcept { resting_ = false; }
  void rest();

  /// Sends `bytes` at `data`, which must stay until completed(to) has reached the number that is returned.
  uint64_t send(int to, const std::byte* data, size_t bytes);
  uint64_t completed(int to) const { return queue(to).completed; }

  /// True if the next message from `from` is there.
  bool arrived(int from);
  /// Its size and place, until release(). Only if arrived().
  size_t bytes(int from) const { return next(from).bytes; }
  const std::byte* data(int from) const { return next(from).memory; }
  void release(int from);

  /// Moves messages; true if there was something to do.
  bool progress();
  /// Sleeps until there is something to do, at most `most`.
  void doze(std::chrono::milliseconds most);

  /// In words, what carries the messages, e.g. "UCX 1.13.1 tcp".
  std::string transport() const;
  /// True if UCX could carry the memory of CUDA devices.
  bool cuda() const { return knowsCuda(context_.get()); }

 private:
  struct Queue;
  struct Send {
    Queue* queue;
    bool done;
  };
  struct FreeRequest {
    void operator()(void* request) const noexcept { ucx().requestFree(request); }
  };
  struct Receive {
    std::byte* memory = nullptr;
    size_t bytes = 0;
    std::unique_ptr<void, FreeRequest> request;
    std::atomic<bool> arrived{false};
  };
  struct Queue {
    Network* network = nullptr;
    int rank = 0;
    ucp_ep_h endpoint = nullptr;
    std::deque<Send> sends;  ///< not completed, oldest first
    uint64_t sent = 0;
    std::atomic<uint64_t> completed{0};  ///< all up to this one
    std::vector<Receive> receives;       ///< posted in advance; empty until the queue is first used
    uint64_t received = 0;
    std::unique_ptr<Line[]> memory;
    Receive hello;
    Receive bye;
  };
  enum class Kind : uint64_t { Data, Hello, Bye };

  void open(const std::vector<bool>& peers);
  void connectTo(Queue& queue, const std::vector<std::byte>& address);
  void greet(std::chrono::milliseconds timeout);
  void bye();
  void serve();
  void stop() noexcept;
  void closeEndpoints();

  Queue& queue(int rank) const { return *queues_[static_cast<size_t>(rank)]; }
  Receive& next(int from) const;
  uint64_t tag(Kind kind, int source, uint64_t sequence) const;
  void post(Queue& queue, Receive& receive, size_t capacity, uint64_t tag);
  void cancel(Receive& receive);
  void discardUnread();
  void startSend(Queue& queue, const std::byte* data, size_t bytes, uint64_t tag);
  void drain();
  bool arm();
  void reportFailure();
  void noteFailure(const Queue& queue, ucs_status_t status);

  static void onSent(void* request, ucs_status_t status, void* send);
  static void onReceived(void* request, ucs_status_t status, const ucp_tag_recv_info_t* info, void* receive);
  static void onError(void* queue, ucp_ep_h endpoint, ucs_status_t status);
  static void settle(Send& send);

  const int rank_;
  Health& health_;
  UcxContext context_;
  UcxWorker worker_;
  int descriptor_ = -1;  ///< the worker's, for poll()
  uint64_t id_ = 0;      ///< the communicator's, in every tag
  std::vector<std::unique_ptr<Queue>> queues_;

  mutable std::mutex mutex_;  ///< guards the worker and what its callbacks change
  std::string failure_;       ///< to be reported once the mutex is free
  std::atomic<bool> failed_{false};
  bool closing_ = false;

  std::atomic<bool> resting_{true};
  std::atomic<bool> parked_{false};  ///< the thread waits for rest()
  std::atomic<bool> stopping_{false};
  std::mutex restMutex_;
  std::condition_variable restChanged_;
  std::thread thread_;
};

}  // namespace seqpar
