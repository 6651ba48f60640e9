// A network of UCX's tagged messages; a send is synchronous in UCX's sense. The thread sleeps on the worker's event
// descriptor.
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
#include "transport/network.h"
#include "transport/segment.h"
#include "transport/ucx.h"

namespace seqpar {

class UcxNetwork : public Network {
 public:
  /// Network::connect().
  static std::unique_ptr<UcxNetwork> connect(Allgather& control, const std::vector<bool>& peers, Health& health,
                                             std::chrono::milliseconds timeout);

  /// Creates an unconnected object; see connect().
  UcxNetwork(int rank, Health& health);
  ~UcxNetwork() override;

  void resume() noexcept override { resting_ = false; }
  void rest() override;
  uint64_t send(int to, const std::byte* data, size_t bytes) override;
  uint64_t completed(int to) const override { return queue(to).completed; }
  bool arrived(int from) override;
  size_t bytes(int from) const override { return next(from).bytes; }
  const std::byte* data(int from) const override { return next(from).memory; }
  void release(int from) override;
  bool progress() override;
  void doze(std::chrono::milliseconds most) override;
  std::string transport() const override;
  std::string library() const override { return "UCX " + ucxVersion(); }
  bool cuda() const override { return knowsCuda(context_.get()); }

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
    UcxNetwork* network = nullptr;
    int rank = 0;
    ucp_ep_h endpoint = nullptr;
    std::deque<Send> sends;  ///< not completed, oldest first
    uint64_t sent = 0;
    std::atomic<uint64_t> completed{0};  ///< number of completed sends, in order
    std::vector<Receive> receives;       ///< posted in advance; empty until first use of the queue
    uint64_t received = 0;
    std::unique_ptr<CacheLine[]> memory;
    Receive hello;
    Receive ready;
    Receive bye;
  };
  enum class Kind : uint64_t { Data, Hello, Bye, Ready };

  void open(const std::vector<bool>& peers);
  void connectTo(Queue& queue, const std::vector<std::byte>& address);
  void greet(const std::vector<std::vector<std::byte>>& addresses, std::chrono::milliseconds timeout);
  void bye();
  void serve();
  void stop() noexcept;
  void closeEndpoints();
  void abandon();

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
  static void completeSend(Send& send);

  const int rank_;
  Health& health_;
  UcxContext context_;
  UcxWorker worker_;
  int descriptor_ = -1;  ///< the worker's, for poll()
  uint64_t id_ = 0;      ///< the communicator's, part of every tag
  std::vector<std::unique_ptr<Queue>> queues_;

  mutable std::mutex mutex_;  ///< guards the worker and the state that its callbacks change
  std::string failure_;       ///< reported after the mutex is released
  std::atomic<bool> failed_{false};
  bool closing_ = false;
  bool greeted_ = false;  ///< all connections are established

  std::atomic<bool> resting_{true};
  std::atomic<bool> parked_{false};  ///< the thread waits for rest()
  std::atomic<bool> stopping_{false};
  std::mutex restMutex_;
  std::condition_variable restChanged_;
  std::thread thread_;
};

}  // namespace seqpar
