#include "transport/ucx.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/statvfs.h>

#include <cstdio>
#include <cstdlib>
#include <sstream>

namespace seqpar {

namespace {

/// UCX also calls a full /dev/shm "Out of memory".
std::string sharedMemoryLeft() {
  struct statvfs folder {};
  if (statvfs("/dev/shm", &folder) != 0) return "";
  return concat("; /dev/shm has ", uint64_t{folder.f_bavail} * folder.f_frsize, " bytes left");
}

/// UCX calls a lack of descriptors "Input/output error" or "No resources are available ...". It has closed its own by
/// now.
std::string descriptorsLeft() {
  constexpr rlim_t kMany = 256;
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur > kMany) return "";
  int left = 0;
  for (int number = 0; number < static_cast<int>(limit.rlim_cur); ++number) left += fcntl(number, F_GETFD) < 0 ? 1 : 0;
  return concat("; the process may open ", left, " more descriptors (ulimit -n is ", limit.rlim_cur, ")");
}

std::string leftAfter(ucs_status_t status) {
  if (status == UCS_ERR_NO_MEMORY) return sharedMemoryLeft();
  return status == UCS_ERR_IO_ERROR || status == UCS_ERR_NO_RESOURCE ? descriptorsLeft() : "";
}

}  // namespace

void checkUcx(ucs_status_t status, const std::string& call) {
  if (status == UCS_OK) return;
  fail(seqparSystemError, call, ": ", ucx().statusString(status), leftAfter(status));
}

std::string ucxVersion() {
  unsigned major = 0;
  unsigned minor = 0;
  unsigned release = 0;
  ucx().getVersion(&major, &minor, &release);
  return concat(major, '.', minor, '.', release);
}

void requireUcx() {
  const std::string& problem = findUcx().problem;
  if (!problem.empty()) fail(seqparInvalidUsage, "UCX is needed, but there is ", problem);
}

UcxContext makeUcxContext(uint64_t features, UcxSettings settings) {
  requireUcx();
  ucp_config_t* raw = nullptr;
  checkUcx(ucx().configRead(nullptr, nullptr, &raw), "ucp_config_read");
  const std::unique_ptr<ucp_config_t, void (*)(ucp_config_t*)> config(raw, ucx().configRelease);
  for (const auto& [name, value] : settings) {
    checkUcx(ucx().configModify(raw, name, value), concat("ucp_config_modify(", name, "=", value, ")"));
  }
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES;
  params.features = features;
  ucp_context_h context = nullptr;
  checkUcx(ucx().initVersion(UCP_API_MAJOR, UCP_API_MINOR, &params, raw, &context), "ucp_init");
  return UcxContext(context);
}

UcxWorker makeUcxWorker(ucp_context_h context, ucs_thread_mode_t mode) {
  ucp_worker_params_t params{};
  params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  params.thread_mode = mode;
  ucp_worker_h worker = nullptr;
  checkUcx(ucx().workerCreate(context, &params, &worker), "ucp_worker_create");
  return UcxWorker(worker);
}

std::vector<std::byte> ucxAddress(ucp_worker_h worker) {
  ucp_address_t* address = nullptr;
  size_t length = 0;
  checkUcx(ucx().workerGetAddress(worker, &address, &length), "ucp_worker_get_address");
  const auto* bytes = reinterpret_cast<const std::byte*>(address);
  std::vector<std::byte> copy(bytes, bytes + length);
  ucx().workerReleaseAddress(worker, address);
  return copy;
}

bool knowsCuda(ucp_context_h context) {
  ucp_context_attr_t attributes{};
  attributes.field_mask = UCP_ATTR_FIELD_MEMORY_TYPES;
  checkUcx(ucx().contextQuery(context, &attributes), "ucp_context_query");
  return (attributes.memory_types & (uint64_t{1} << UCS_MEMORY_TYPE_CUDA)) != 0;
}

std::string transportsOf(ucp_ep_h endpoint) {
  // This release of the interface only provides them as printed text: "queue[0]:  2:tcp/eth0.0 md[1] ...".
  char* text = nullptr;
  size_t length = 0;
  {
    const std::unique_ptr<std::FILE, int (*)(std::FILE*)> stream(open_memstream(&text, &length), std::fclose);
    if (stream == nullptr) return {};
    ucx().epPrintInfo(endpoint, stream.get());
  }
  if (text == nullptr) return {};
  const std::unique_ptr<char, void (*)(void*)> owner(text, std::free);
  std::istringstream words(std::string(text, length));
  std::string names;
  for (std::string word; words >> word;) {
    const size_t colon = word.find(':');
    const size_t slash = word.find('/');
    if (colon == std::string::npos || slash == std::string::npos || colon == 0 || slash < colon) continue;
    if (word.find_first_not_of("0123456789") != colon) continue;
    const std::string name = word.substr(colon + 1, slash - colon - 1);
    if (names.find(name) == std::string::npos) names += (names.empty() ? "" : "+") + name;
  }
  return names;
}

}  // namespace seqpar
