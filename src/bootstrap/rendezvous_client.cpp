#include "bootstrap/rendezvous_client.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "base/process.h"

namespace seqpar {
namespace {

class RendezvousClient final : public Allgather {
 public:
  RendezvousClient(const JoinRequest& request, const std::function<RootConnection(const Health&)>& join,
                   std::shared_ptr<Health> health)
      : health_(health ? std::move(health) : std::make_shared<Health>()),
        client_(join(*health_), request, *health_, nullptr) {}
  ~RendezvousClient() override { client_.part(); }

  int rank() const override { return client_.rank(); }
  int size() const override { return client_.size(); }
  std::optional<Token> secret() const override { return client_.secret(); }
  const Health* health() const override { return health_.get(); }
  void gather(std::span<const std::byte> mine, std::span<std::byte> all) override { client_.gather(mine, all); }

 private:
  std::shared_ptr<Health> health_;
  Client client_;
};

class Solo final : public Allgather {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  void gather(std::span<const std::byte> mine, std::span<std::byte> all) override {
    if (mine.size() != all.size()) fail(seqparInternalError, "gather: ", mine.size(), " bytes into ", all.size());
    if (!mine.empty()) std::memmove(all.data(), mine.data(), mine.size());
  }
};

}  // namespace

void checkRank(int rank, int nranks) {
  if (nranks < 1 || nranks > static_cast<int>(wire::kMaxRanks)) {
    fail(seqparInvalidArgument, "nranks is ", nranks, ", expected 1..", wire::kMaxRanks);
  }
  if (rank < 0 || rank >= nranks) fail(seqparInvalidArgument, "rank is ", rank, ", expected 0..", nranks - 1);
}

std::unique_ptr<Allgather> makeRendezvousClient(const JoinRequest& request,
                                                const std::function<RootConnection(const Health&)>& join,
                                                std::shared_ptr<Health> health) {
  return std::make_unique<RendezvousClient>(request, join, std::move(health));
}

std::unique_ptr<Allgather> makeSolo() {
  return std::make_unique<Solo>();
}

RendezvousServers& RendezvousServers::instance() {
  // Threads, and destructors of global objects, may still use it while the process exits.
  auto& servers = ofProcess<RendezvousServers>();
  struct Exit {
    ~Exit() { ofProcess<RendezvousServers>().endAll(); }
  };
  static const Exit exit;
  return servers;
}

Descriptor RendezvousServers::start(Listener listener, RootOptions options, bool local) {
  auto server = std::make_unique<RootServer>(std::move(listener), std::move(options), local);
  Descriptor connection = server->takeLocal();
  const std::lock_guard lock(mutex_);
  std::erase_if(servers_, [](const auto& one) { return one->over(); });
  servers_.push_back(std::move(server));
  return connection;
}

void RendezvousServers::endAll() {
  std::vector<std::unique_ptr<RootServer>> ended;
  const std::lock_guard lock(mutex_);
  ended.swap(servers_);
}

void RendezvousServers::end(const Token& token) {
  std::unique_ptr<RootServer> ended;
  const std::lock_guard lock(mutex_);
  const auto found = std::find_if(servers_.begin(), servers_.end(),
                                  [&](const auto& server) { return equalTokens(server->token(), token); });
  if (found == servers_.end()) return;
  ended = std::move(*found);
  servers_.erase(found);
}

}  // namespace seqpar
