// The mailbox of simulated ranks: records messages. Nothing waits. The contents of received messages are meaningless,
// except those that announce a tensor for reading in place, which Announcements carry from rank to rank.
#pragma once

#include <cstddef>
#include <map>
#include <span>
#include <vector>

#include "library/recorder.h"
#include "transport/mailbox.h"

namespace seqpar::sim {

class RecordingMailbox final : public Mailbox {
 public:
  /// A message of n bytes counts as `scale` times n bytes. `posts`: the rank does not wait until a message has left.
  explicit RecordingMailbox(double scale = 1, bool posts = false) : scale_(scale), posts_(posts) {}
  int rank() const override { return Recorder::current().rank(); }
  int size() const override { return Recorder::current().ranks(); }
  size_t maxMessage() const override;
  size_t window() const override;
  bool direct(int peer) const override;
  void begin(const char*, uint64_t) override {}
  void mark(uint64_t) override {}
  void end() override {}
  void abandon() noexcept override {}
  bool waited() const override { return false; }
  Target acquire(std::span<const int> to, size_t bytes) override;
  void commit() override;
  const std::byte* receive(int from, size_t bytes) override;
  void release(int) override {}
  bool ready(int) override { return false; }
  bool readable(int peer) const override { return direct(peer); }
  bool prefersMessages(int) override { return Recorder::current().machine().host.sendsMessages; }
  void read(int, std::span<const RemoteBytes>, std::span<const std::span<std::byte>>) override;
  bool mapped(int peer) const override { return direct(peer) && Recorder::current().machine().host.maps; }
  bool shared(const void* data, size_t) const override { return Recorder::isMapped(data); }
  const std::byte* view(int peer, uint64_t address, size_t bytes) override;
  void endViews(int peer) override;

 private:
  std::byte* at(size_t bytes);

  double scale_;
  bool posts_;
  bool receives_ = false;  ///< since the last sent message
  std::vector<std::byte> memory_;
  std::vector<int> to_;
  size_t bytes_ = 0;
  std::map<int, size_t> viewed_;  ///< by peer, until endViews()
};

}  // namespace seqpar::sim
