#include "ring/copy_backend.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <numeric>
#include <thread>

#include "device/stream_memory.h"
#include "device/watchdog.h"
#include "ring/copy_window.h"
#include "ring/high_priority_stream.h"
#include "ring/transfer_log.h"

namespace seqpar {
namespace {

/// Transfers per refill of the table of stamps.
constexpr std::uint32_t kStamps = 1 << 12;
/// Distance by which a failed ring's words are set ahead of its last transfer: beyond every possible wait.
constexpr std::uint32_t kFarAhead = 1 << 30;
constexpr std::chrono::milliseconds kPause{1};

/// Transfers are numbered identically on all ranks, and words contain transfer numbers. A step on one stream of the
/// ring: tell the sender that there is space (the caller's stream has reached this point), wait for space at the
/// receiver, copy, tell the receiver, wait for the arrival. A rank enqueues everything that it gives to other ranks in
/// a step before its own waits, so ranks cannot deadlock even if streams are executed one after the other.
///
/// Numbers are copied into the words of other ranks from a table, the stamps. After a failure, the table is cleared
/// before stuck streams are released, so that no rank takes the released copies for a step of the ring.
class CopyRingBackend : public RingBackend {
 public:
  CopyRingBackend(std::shared_ptr<Communicator> comm, const RingBuffers& buffers, const MakeCapturable& makeCapturable)
      : comm_(std::move(comm)),
        group_(*comm_->device()),
        window_(std::make_shared<CopyWindow>(group_, buffers)),
        capturable_(makeCapturable(window_->placed(buffers), window_)),
        rescue_(makeStream()),
        stream_(makeUrgentStream()),
        stamps_(allocateDevice(kStamps * sizeof(std::uint32_t), "stamps of a ring")),
        flags_(allocateMapped(CopyWindow::kWordsBytes, "flags of a ring")),
        seen_(allocateMapped(CopyWindow::kWordsBytes, "flags of a ring")) {
    fillStamps();
    watchdog_ = std::make_unique<Watchdog>(
        comm_->health(), [this] { poll(); }, [this] { release(); });
  }

  ~CopyRingBackend() override {
    // Buffers must not be freed during a copy. The copy ends when its peers proceed, or through release() after a
    // failure.
    while (!log_.idle()) std::this_thread::sleep_for(kPause);
  }

  const char* name() const override { return "copy engines, no SM"; }
  std::byte* buffer(int set, size_t tensor) const override { return capturable_->buffer(set, tensor); }

  unsigned long long capture(const CallerStream& stream) const override { return capturable_->capture(stream); }

  void post(const std::vector<RingTransfer>& transfers, const CallerStream& caller) override {
    const CurrentDevice current(group_.device());
    const auto stream = static_cast<cudaStream_t>(caller.device);
    latest_ = nullptr;
    // A graph is replayed, but the numbers are not.
    if (capturing(stream)) return capturable_->post(transfers, caller);

    const Posting posting(*this);
    if (number_ - filled_ == kStamps) {
      awaitIdle();
      fillStamps();
    }
    requireRunning();
    ++number_;
    auto transfer = log_.take();
    checkCuda(cudaEventRecord(transfer->before.get(), stream), "cudaEventRecord");
    checkCuda(cudaStreamWaitEvent(stream_.get(), transfer->before.get(), 0), "cudaStreamWaitEvent");
    const auto close = [&] {
      latest_ = transfer->after.get();
      checkCuda(cudaEventRecord(latest_, stream_.get()), "cudaEventRecord");
      log_.add(std::move(transfer));
    };
    try {
      comm_->enqueue("seqparRingPost", stream_.get(), [&](DeviceGroup&) { enqueue(transfers, *transfer); });
    } catch (...) {
      close();  // release() must also end the enqueued part
      throw;
    }
    close();
  }

  void wait(const CallerStream& caller) override {
    if (latest_ == nullptr) return capturable_->wait(caller);
    const CurrentDevice current(group_.device());
    checkCuda(cudaStreamWaitEvent(static_cast<cudaStream_t>(caller.device), latest_, 0), "cudaStreamWaitEvent");
  }

 private:
  /// While one exists, release() continues.
  class Posting {
   public:
    explicit Posting(CopyRingBackend& backend) : backend_(backend) { backend_.posting_ = true; }
    Posting(const Posting&) = delete;
    Posting& operator=(const Posting&) = delete;
    ~Posting() { backend_.posting_ = false; }

   private:
    CopyRingBackend& backend_;
  };

  void enqueue(const std::vector<RingTransfer>& transfers, TransferLog::Transfer& log) {
    const int self = comm_->rank();
    for (const auto& transfer : transfers) {
      if (!transfer.in.empty()) tell(transfer.from, CopyWindow::roomAt(self));
    }
    for (const auto& transfer : transfers) {
      if (transfer.out.empty()) continue;
      await(CopyWindow::roomAt(transfer.to), log);
      copy(transfer);
      tell(transfer.to, CopyWindow::arrivedFrom(self));
    }
    for (const auto& transfer : transfers) {
      if (!transfer.in.empty()) await(CopyWindow::arrivedFrom(transfer.from), log);
    }
  }

  /// Merges parts that are contiguous in both windows into one copy.
  void copy(const RingTransfer& transfer) {
    const std::byte* from = nullptr;
    std::byte* into = nullptr;
    std::size_t bytes = 0;
    const auto flush = [&] {
      if (bytes == 0) return;
      checkCuda(cudaMemcpyAsync(into, from, bytes, cudaMemcpyDefault, stream_.get()), "cudaMemcpyAsync");
    };
    for (const auto& part : transfer.out) {
      const bool elsewhere = part.source != nullptr;
      const std::byte* const source = elsewhere ? part.source : buffer(part.set, part.tensor) + part.offset;
      std::byte* const target = window_->tensor(transfer.to, transfer.receiveSet, part.tensor) + part.offset;
      const bool follows = !elsewhere && window_->holds(part.set) && source == from + bytes && target == into + bytes;
      if (bytes == 0 || !follows) {
        flush();
        from = source;
        into = target;
        bytes = 0;
      }
      bytes += part.bytes;
    }
    flush();
  }

  /// Writes this transfer's number into a word of another rank, after all earlier work of the stream.
  void tell(int rank, std::size_t word) {
    const std::byte* stamp = stamps_.get() + (number_ - filled_ - 1) * sizeof(std::uint32_t);
    checkCuda(
        cudaMemcpyAsync(window_->word(rank, word), stamp, sizeof(std::uint32_t), cudaMemcpyDefault, stream_.get()),
        "cudaMemcpyAsync");
  }

  /// Blocks the stream until a word of this rank contains this transfer's number.
  void await(std::size_t word, TransferLog::Transfer& log) {
    log.needs.push_back({word, number_});
    streamWait(stream_.get(), window_->word(comm_->rank(), word), number_);
  }

  /// Fills the stamps with the next numbers; no transfer may be in progress.
  void fillStamps() {
    filled_ = number_;
    std::vector<std::uint32_t> stamps(kStamps);
    std::iota(stamps.begin(), stamps.end(), filled_ + 1);
    checkCuda(cudaMemcpyAsync(stamps_.get(), stamps.data(), kStamps * sizeof(std::uint32_t), cudaMemcpyDefault,
                              stream_.get()),
              "cudaMemcpyAsync");
    checkCuda(cudaStreamSynchronize(stream_.get()), "cudaStreamSynchronize");
  }

  void awaitIdle() {
    while (!log_.idle()) {
      requireRunning();
      std::this_thread::sleep_for(kPause);
    }
  }

  void requireRunning() const {
    if (ended_) comm_->health().check();
  }

  // The methods below run on the watchdog's thread.

  /// Reports a wait that exceeds the timeout, like that of a kernel.
  void poll() {
    const std::chrono::nanoseconds limit(group_.peers().waits.timeoutNs);
    if (limit.count() == 0 || nothingToDo()) return;
    const auto needs = log_.overdue(limit);
    if (needs.empty()) return;
    copyWords(seen_.get(), window_->word(comm_->rank(), 0));
    const auto unmet = std::find_if(needs.begin(), needs.end(), [&](const TransferLog::Need& need) {
      std::uint32_t value = 0;
      std::memcpy(&value, seen_.get() + need.word * CopyWindow::kWordStride, sizeof(value));
      return static_cast<std::int32_t>(value - need.value) < 0;
    });
    const auto blamed = unmet == needs.end() ? needs.back() : *unmet;
    *group_.peers().waits.timedOut = 1 + static_cast<std::uint32_t>(blamed.word % kMostPeers);
  }

  bool nothingToDo() {
    useDevice();
    return log_.idle();
  }

  /// Releases stuck streams. Peers that have not noticed the failure may still write into the words, so it repeats
  /// until no stream is stuck.
  void release() {
    useDevice();
    ended_ = true;
    while (posting_ || !log_.idle()) {
      const std::uint32_t far = number_ + kFarAhead;
      for (std::size_t word = 0; word < CopyWindow::kWords; ++word) {
        std::memcpy(flags_.get() + word * CopyWindow::kWordStride, &far, sizeof(far));
      }
      noteCuda(cudaMemsetAsync(stamps_.get(), 0, kStamps * sizeof(std::uint32_t), rescue_.get()), "cudaMemsetAsync");
      copyWords(window_->word(comm_->rank(), 0), flags_.get());
      std::this_thread::sleep_for(kPause);
    }
  }

  void copyWords(std::byte* into, const std::byte* from) {
    noteCuda(cudaMemcpyAsync(into, from, CopyWindow::kWordsBytes, cudaMemcpyDefault, rescue_.get()), "cudaMemcpyAsync");
    noteCuda(cudaStreamSynchronize(rescue_.get()), "cudaStreamSynchronize");
  }

  /// Permanently for this thread, and without disturbing captures on other threads.
  void useDevice() {
    auto mode = cudaStreamCaptureModeRelaxed;
    noteCuda(cudaThreadExchangeStreamCaptureMode(&mode), "cudaThreadExchangeStreamCaptureMode");
    noteCuda(cudaSetDevice(group_.device()), "cudaSetDevice");
  }

  std::shared_ptr<Communicator> comm_;
  DeviceGroup& group_;
  std::shared_ptr<CopyWindow> window_;
  std::unique_ptr<RingBackend> capturable_;
  StreamHandle rescue_, stream_;
  DeviceMemory stamps_;
  MappedMemory flags_, seen_;
  TransferLog log_;
  std::atomic<std::uint32_t> number_{0};  ///< of the last transfer
  std::uint32_t filled_ = 0;              ///< the stamps are for the numbers after this one
  cudaEvent_t latest_ = nullptr;          ///< recorded after the last transfer; null if that was captured
  std::atomic<bool> posting_{false}, ended_{false};
  std::unique_ptr<Watchdog> watchdog_;  // last: it ends before the members that it reads
};

}  // namespace

std::unique_ptr<RingBackend> makeCopyRingBackend(const std::shared_ptr<Communicator>& comm, const RingBuffers& buffers,
                                                 const MakeCapturable& makeCapturable) {
  return std::make_unique<CopyRingBackend>(comm, buffers, makeCapturable);
}

}  // namespace seqpar
