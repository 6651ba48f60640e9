// UCX handles with automatic release, and conversion of its statuses to errors.
#pragma once

#include <cstddef>
#include <initializer_list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "transport/ucx_library.h"

namespace seqpar {

/// Throws a SystemError that names `call` and UCX's reason, unless `status` is UCS_OK.
void checkUcx(ucs_status_t status, const std::string& call);

/// "1.13.1"
std::string ucxVersion();

struct UcxContextDeleter {
  void operator()(ucp_context_h context) const noexcept { ucx().cleanup(context); }
};
struct UcxWorkerDeleter {
  void operator()(ucp_worker_h worker) const noexcept { ucx().workerDestroy(worker); }
};
using UcxContext = std::unique_ptr<ucp_context, UcxContextDeleter>;
using UcxWorker = std::unique_ptr<ucp_worker, UcxWorkerDeleter>;

using UcxSettings = std::initializer_list<std::pair<const char*, const char*>>;

/// Throws InvalidUsage if UCX cannot be used.
void requireUcx();

/// A context with UCX's configuration (including its environment), modified by `settings`.
UcxContext makeUcxContext(uint64_t features, UcxSettings settings);
UcxWorker makeUcxWorker(ucp_context_h context, ucs_thread_mode_t mode);

/// The address of `worker`, as bytes.
std::vector<std::byte> ucxAddress(ucp_worker_h worker);

/// True if `context` supports the memory of CUDA devices.
bool knowsCuda(ucp_context_h context);

/// The names of the transports that `endpoint` uses, e.g. "tcp"; empty if unknown.
std::string transportsOf(ucp_ep_h endpoint);

}  // namespace seqpar
