#include "memory_mailbox.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <new>
#include <stdexcept>
#include <thread>

#include "base/error.h"

namespace seqpar::test {

namespace {

constexpr size_t kAlignment = 64;

size_t roundUp(size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

struct FreeAligned {
  void operator()(std::byte* data) const { ::operator delete(data, std::align_val_t(kAlignment)); }
};

}  // namespace

/// Freed as soon as the last receiver has released it, so that a sanitizer sees later reads.
struct MemoryLanes::Message {
  explicit Message(size_t size)
      : data(static_cast<std::byte*>(::operator new(size, std::align_val_t(kAlignment)))), bytes(size) {
    // All ones are NaN in every type: unwritten elements cannot pass for results.
    std::memset(data.get(), 0xff, size);
  }
  std::unique_ptr<std::byte, FreeAligned> data;
  size_t bytes;
  uint64_t mark = 0;
  int readers = 0;
};

struct MemoryLanes::Queue {
  std::deque<std::shared_ptr<Message>> waiting;
  std::shared_ptr<Message> held;
  size_t published = 0;
};

class MemoryLanes::Box final : public Mailbox {
 public:
  Box(MemoryLanes& lanes, int rank) : lanes_(lanes), rank_(rank) {}
  using Mailbox::acquire;

  int rank() const override { return rank_; }
  int size() const override { return lanes_.size_; }
  size_t maxMessage() const override { return lanes_.options_.maxMessage; }
  size_t window() const override { return lanes_.options_.window; }
  bool direct(int) const override { return true; }

  void begin(const char* operation, uint64_t) override {
    require(operation_.empty(), "begin() inside an operation");
    operation_ = operation;
    mark_ = 0;
  }

  void mark(uint64_t digest) override { mark_ = digest; }

  bool waited() const override { return true; }

  void end() override {
    require(!operation_.empty(), "end() without begin()");
    require(!building_, "end() with a message under construction");
    for (int from = 0; from < size(); ++from) require(!lanes_.queue(from, rank_).held, "end() with a message held");
    operation_.clear();
  }

  Target acquire(std::span<const int> to, size_t bytes) override {
    require(!operation_.empty(), "acquire() outside an operation");
    require(!building_, "acquire() with a message under construction");
    require(bytes <= maxMessage(), concat("acquire() of ", bytes, " bytes, maxMessage() is ", maxMessage()));
    require(!to.empty(), "acquire() for nobody");
    for (size_t i = 0; i < to.size(); ++i) {
      require(to[i] >= 0 && to[i] < size() && to[i] != rank_, concat("acquire() for rank ", to[i]));
      require(std::count(to.begin(), to.end(), to[i]) == 1, concat("acquire() for rank ", to[i], " more than once"));
    }
    std::unique_lock lock(lanes_.mutex_);
    lanes_.waitFor(lock, concat("rank ", rank_, " acquiring ", bytes, " bytes"), [&] {
      reclaim();
      return !lanes_.options_.strict || inWindow_ + roundUp(bytes) <= window();
    });
    building_ = std::make_shared<Message>(bytes);
    building_->mark = mark_;
    building_->readers = static_cast<int>(to.size());
    to_.assign(to.begin(), to.end());
    return building_->data.get();
  }

  void commit() override {
    require(building_ != nullptr, "commit() without acquire()");
    const std::lock_guard lock(lanes_.mutex_);
    for (const int to : to_) {
      lanes_.queue(rank_, to).waiting.push_back(building_);
      ++lanes_.queue(rank_, to).published;
    }
    inWindow_ += roundUp(building_->bytes);
    unread_.push_back(std::move(building_));
    ++published_;
    lanes_.changed_.notify_all();
  }

  const std::byte* receive(int from, size_t bytes) override {
    require(from >= 0 && from < size() && from != rank_, concat("receive() from rank ", from));
    require(!operation_.empty(), "receive() outside an operation");
    require(!building_, "receive() with a message under construction");
    std::unique_lock lock(lanes_.mutex_);
    Queue& queue = lanes_.queue(from, rank_);
    require(!queue.held, concat("receive() from rank ", from, ", whose message is still held"));
    lanes_.waitFor(lock, concat("rank ", rank_, " receiving from rank ", from), [&] { return !queue.waiting.empty(); });
    queue.held = std::move(queue.waiting.front());
    queue.waiting.pop_front();
    if (queue.held->bytes != bytes) {
      fail(seqparInternalError, "rank ", rank_, " expects ", bytes, " bytes from rank ", from, ", which sent ",
           queue.held->bytes);
    }
    if (queue.held->mark != mark_) fail(seqparInternalError, "rank ", rank_, " expects another mark from rank ", from);
    return queue.held->data.get();
  }

  void release(int from) override {
    const std::lock_guard lock(lanes_.mutex_);
    Queue& queue = lanes_.queue(from, rank_);
    require(queue.held != nullptr, concat("release() of rank ", from, " without receive()"));
    if (--queue.held->readers == 0) queue.held->data.reset();
    queue.held.reset();
    lanes_.changed_.notify_all();
  }

  bool ready(int from) override {
    const std::lock_guard lock(lanes_.mutex_);
    return !lanes_.queue(from, rank_).waiting.empty();
  }

  void abandon() noexcept override {}

  bool readable(int) const override { return true; }
  bool prefersMessages(int) override { return lanes_.options_.messages && ++asked_ % 3 != 0; }
  using Mailbox::read;
  void read(int peer, std::span<const RemoteBytes> from, std::span<const std::span<std::byte>> into) override {
    require(peer >= 0 && peer < size() && peer != rank_, concat("read() of rank ", peer));
    std::vector<std::byte> all;
    for (const auto& part : from) {
      const auto* const begin = reinterpret_cast<const std::byte*>(part.address);
      all.insert(all.end(), begin, begin + part.bytes);
    }
    size_t at = 0;
    for (const auto part : into) {
      require(part.size() <= all.size() - at, "read() into more bytes than there are");
      std::copy_n(all.begin() + static_cast<std::ptrdiff_t>(at), part.size(), part.begin());
      at += part.size();
    }
    require(at == all.size(), "read() of more bytes than there is room for");
  }

  bool mapped(int) const override { return lanes_.options_.mapped; }
  bool shared(const void* data, size_t) const override {
    return mapped(0) && reinterpret_cast<uintptr_t>(data) % 3 != 0;
  }
  const std::byte* view(int peer, uint64_t address, size_t) override {
    require(peer >= 0 && peer < size() && peer != rank_, concat("view() of rank ", peer));
    require(mapped(peer), "view() of a rank that is not mapped");
    return reinterpret_cast<const std::byte*>(address);
  }
  void endViews(int) override {}

  size_t published() const { return published_; }

 private:
  void require(bool condition, const std::string& what) const {
    if (!condition) throw std::logic_error(concat("rank ", rank_, ": ", what));
  }

  /// Space is freed in the order of allocation, as in a ring buffer.
  void reclaim() {
    while (!unread_.empty() && unread_.front()->readers == 0) {
      inWindow_ -= roundUp(unread_.front()->bytes);
      unread_.pop_front();
    }
  }

  MemoryLanes& lanes_;
  int rank_;
  unsigned asked_ = 0;  ///< calls of prefersMessages()
  std::string operation_;
  uint64_t mark_ = 0;
  std::shared_ptr<Message> building_;
  std::vector<int> to_;
  std::deque<std::shared_ptr<Message>> unread_;
  size_t inWindow_ = 0;
  size_t published_ = 0;
};

MemoryLanes::MemoryLanes(int size, const MemoryMailboxOptions& options)
    : size_(size), options_(options), lanes_(static_cast<size_t>(size) * size) {
  for (int rank = 0; rank < size; ++rank) boxes_.push_back(std::make_unique<Box>(*this, rank));
}

MemoryLanes::~MemoryLanes() = default;

MemoryLanes::Queue& MemoryLanes::queue(int from, int to) {
  return lanes_[static_cast<size_t>(from) * size_ + to];
}

const MemoryLanes::Queue& MemoryLanes::queue(int from, int to) const {
  return lanes_[static_cast<size_t>(from) * size_ + to];
}

void MemoryLanes::stop(const std::string& why) {
  const std::lock_guard lock(mutex_);
  if (stopped_.empty()) stopped_ = why;
  changed_.notify_all();
}

void MemoryLanes::waitFor(std::unique_lock<std::mutex>& lock, const std::string& what,
                          const std::function<bool()>& done) {
  const bool inTime = changed_.wait_for(lock, options_.timeout, [&] { return !stopped_.empty() || done(); });
  if (!stopped_.empty()) fail(seqparRemoteError, what, ": ", stopped_);
  if (inTime) return;
  stopped_ = concat(what, " waited for more than ", options_.timeout.count(), " s");
  changed_.notify_all();
  fail(seqparRemoteError, stopped_);
}

void MemoryLanes::run(const std::function<void(Mailbox&)>& body) {
  std::exception_ptr first;
  std::mutex firstMutex;
  std::vector<std::jthread> threads;
  for (const auto& box : boxes_) {
    threads.emplace_back([&, this] {
      try {
        box->begin("test", 0);
        body(*box);
        box->end();
      } catch (const std::exception& error) {
        {
          const std::lock_guard lock(firstMutex);
          if (!first) first = std::current_exception();
        }
        stop(concat("rank ", box->rank(), " failed: ", error.what()));
      }
    });
  }
  threads.clear();
  if (first) std::rethrow_exception(first);
  for (const Queue& each : lanes_) {
    if (!each.waiting.empty()) throw std::logic_error("messages were sent and never received");
  }
}

size_t MemoryLanes::messagesFrom(int rank) const {
  return boxes_[rank]->published();
}

size_t MemoryLanes::messagesOn(int from, int to) const {
  return queue(from, to).published;
}

}  // namespace seqpar::test
