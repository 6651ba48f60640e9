#include "nccl.h"

#include "group.h"

#ifdef SEQPAR_PERF_NCCL
#include <dlfcn.h>
#include <nccl.h>

#include <algorithm>
#include <stdexcept>
#endif

namespace seqpar::perf {

#ifdef SEQPAR_PERF_NCCL
namespace {

/// The NCCL functions in use.
struct Library {
  Library() {
    // Prefers a library that the process has already loaded.
    file = dlopen("libnccl.so.2", RTLD_LAZY | RTLD_NOLOAD);
    if (file == nullptr) file = dlopen("libnccl.so.2", RTLD_LAZY | RTLD_LOCAL);
    if (file == nullptr) {
      problem = "no libnccl.so.2";
      return;
    }
    load("ncclGetVersion", getVersion);
    load("ncclGetErrorString", getErrorString);
    load("ncclGetUniqueId", getUniqueId);
    load("ncclCommInitRank", commInitRank);
    load("ncclCommDestroy", commDestroy);
    load("ncclGroupStart", groupStart);
    load("ncclGroupEnd", groupEnd);
    load("ncclSend", send);
    load("ncclRecv", recv);
    load("ncclAllGather", allGather);
    load("ncclReduceScatter", reduceScatter);
    load("ncclAllReduce", allReduce);
    load("ncclMemAlloc", memAlloc);
    load("ncclMemFree", memFree);
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 27, 3)
    windowRegister = reinterpret_cast<decltype(windowRegister)>(dlsym(file, "ncclCommWindowRegister"));
    windowDeregister = reinterpret_cast<decltype(windowDeregister)>(dlsym(file, "ncclCommWindowDeregister"));
#endif
  }

  void check(ncclResult_t result, const char* call) const {
    if (result != ncclSuccess) throw std::runtime_error(std::string(call) + ": " + getErrorString(result));
  }

  void* file = nullptr;
  std::string problem;
  decltype(&ncclGetVersion) getVersion = nullptr;
  decltype(&ncclGetErrorString) getErrorString = nullptr;
  decltype(&ncclGetUniqueId) getUniqueId = nullptr;
  decltype(&ncclCommInitRank) commInitRank = nullptr;
  decltype(&ncclCommDestroy) commDestroy = nullptr;
  decltype(&ncclGroupStart) groupStart = nullptr;
  decltype(&ncclGroupEnd) groupEnd = nullptr;
  decltype(&ncclSend) send = nullptr;
  decltype(&ncclRecv) recv = nullptr;
  decltype(&ncclAllGather) allGather = nullptr;
  decltype(&ncclReduceScatter) reduceScatter = nullptr;
  decltype(&ncclAllReduce) allReduce = nullptr;
  decltype(&ncclMemAlloc) memAlloc = nullptr;
  decltype(&ncclMemFree) memFree = nullptr;
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 27, 3)
  decltype(&ncclCommWindowRegister) windowRegister = nullptr;  ///< null before 2.27
  decltype(&ncclCommWindowDeregister) windowDeregister = nullptr;
#endif

 private:
  template <typename Function>
  void load(const char* name, Function& into) {
    into = reinterpret_cast<Function>(dlsym(file, name));
    if (into == nullptr) problem = std::string("a libnccl.so.2 without ") + name;
  }
};

const Library& library() {
  static const Library only;
  return only;
}

class NcclRank : public Nccl {
 public:
  NcclRank(void* stream, const ncclUniqueId& id, int size, int rank) : stream_(static_cast<cudaStream_t>(stream)) {
    nccl_.check(nccl_.commInitRank(&comm_, size, id, rank), "ncclCommInitRank");
  }
  ~NcclRank() override { nccl_.commDestroy(comm_); }

  std::string version() const override {
    int code = 0;
    nccl_.check(nccl_.getVersion(&code), "ncclGetVersion");
    return std::to_string(code / 10000) + "." + std::to_string(code / 100 % 100) + "." + std::to_string(code % 100);
  }

  void groupStart() override { nccl_.check(nccl_.groupStart(), "ncclGroupStart"); }
  void groupEnd() override { nccl_.check(nccl_.groupEnd(), "ncclGroupEnd"); }
  void send(const void* from, size_t bytes, int peer) override {
    nccl_.check(nccl_.send(from, bytes, ncclInt8, peer, comm_, stream_), "ncclSend");
  }
  void receive(void* into, size_t bytes, int peer) override {
    nccl_.check(nccl_.recv(into, bytes, ncclInt8, peer, comm_, stream_), "ncclRecv");
  }
  void allGather(const void* mine, void* all, size_t bytes) override {
    nccl_.check(nccl_.allGather(mine, all, bytes, ncclInt8, comm_, stream_), "ncclAllGather");
  }
  void reduceScatter(const void* all, void* mine, size_t count, int type) override {
    nccl_.check(nccl_.reduceScatter(all, mine, count, typeOf(type), ncclSum, comm_, stream_), "ncclReduceScatter");
  }
  void allReduce(const void* from, void* into, size_t count, int type) override {
    nccl_.check(nccl_.allReduce(from, into, count, typeOf(type), ncclSum, comm_, stream_), "ncclAllReduce");
  }

  std::shared_ptr<void> symmetric([[maybe_unused]] size_t bytes) override {
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 27, 3)
    if (nccl_.windowRegister == nullptr || nccl_.windowDeregister == nullptr) return nullptr;
    void* memory = nullptr;
    nccl_.check(nccl_.memAlloc(&memory, bytes), "ncclMemAlloc");
    ncclWindow_t window = nullptr;
    const auto result = nccl_.windowRegister(comm_, memory, bytes, &window, NCCL_WIN_COLL_SYMMETRIC);
    nccl_.check(result, "ncclCommWindowRegister");
    if (window == nullptr) {
      nccl_.check(nccl_.memFree(memory), "ncclMemFree");
      return nullptr;
    }
    return {memory, [this, window](void* registered) {
              nccl_.windowDeregister(comm_, window);
              nccl_.memFree(registered);
            }};
#else
    return nullptr;
#endif
  }

 private:
  static ncclDataType_t typeOf(int type) {
    return type == seqparFloat32 ? ncclFloat32 : type == seqparFloat16 ? ncclFloat16 : ncclBfloat16;
  }

  const Library& nccl_ = library();
  cudaStream_t stream_;
  ncclComm_t comm_ = nullptr;
};

}  // namespace

std::unique_ptr<Nccl> makeNccl(Group& group, std::string& reason, std::span<const int> members) {
  if (group.gpu()->sharing() > 1) {
    reason = "ranks share a GPU, which NCCL refuses";
    return nullptr;
  }
  std::string problem = library().problem;
  ncclUniqueId mine{};
  const int first = members.empty() ? 0 : members.front();
  if (problem.empty() && group.rank() == first && library().getUniqueId(&mine) != ncclSuccess) {
    problem = "ncclGetUniqueId failed";
  }
  for (const std::string& text : group.gatherText(problem)) {
    if (!text.empty()) reason = text;
  }
  std::vector<ncclUniqueId> all(static_cast<size_t>(group.size()));
  group.gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)));
  if (!reason.empty()) return nullptr;
  const auto here = std::find(members.begin(), members.end(), group.rank());
  const int size = members.empty() ? group.size() : static_cast<int>(members.size());
  const int rank = members.empty() ? group.rank() : static_cast<int>(here - members.begin());
  return std::make_unique<NcclRank>(group.gpu()->stream(), all[static_cast<size_t>(first)], size, rank);
}
#else
std::unique_ptr<Nccl> makeNccl(Group&, std::string& reason, std::span<const int>) {
  reason = "this build has no NCCL";
  return nullptr;
}
#endif

}  // namespace seqpar::perf
