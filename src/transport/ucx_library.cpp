#include "transport/ucx_library.h"

#include <dlfcn.h>

#include "base/error.h"

namespace seqpar {
namespace {

template <typename Function>
void need(UcxFound& found, const char* name, Function& into) {
  into = reinterpret_cast<Function>(dlsym(found.library.file, name));
  if (into == nullptr && found.problem.empty()) found.problem = concat("a libucp.so.0 without ", name);
}

UcxFound open() {
  UcxFound found;
  UcxLibrary& ucx = found.library;
  // A process that has UCX already, from MPI or a wheel, must go on with that one.
  ucx.file = dlopen("libucp.so.0", RTLD_LAZY | RTLD_NOLOAD);
  if (ucx.file == nullptr) ucx.file = dlopen("libucp.so.0", RTLD_LAZY | RTLD_LOCAL);
  if (ucx.file == nullptr) {
    const char* const why = dlerror();
    found.problem = concat("no libucp.so.0 (", why != nullptr ? why : "dlopen() does not say why", ")");
    return found;
  }
  need(found, "ucp_cleanup", ucx.cleanup);
  need(found, "ucp_config_modify", ucx.configModify);
  need(found, "ucp_config_read", ucx.configRead);
  need(found, "ucp_config_release", ucx.configRelease);
  need(found, "ucp_context_query", ucx.contextQuery);
  need(found, "ucp_ep_close_nbx", ucx.epCloseNbx);
  need(found, "ucp_ep_create", ucx.epCreate);
  need(found, "ucp_ep_print_info", ucx.epPrintInfo);
  need(found, "ucp_get_version", ucx.getVersion);
  need(found, "ucp_init_version", ucx.initVersion);
  need(found, "ucp_request_cancel", ucx.requestCancel);
  need(found, "ucp_request_check_status", ucx.requestCheckStatus);
  need(found, "ucp_request_free", ucx.requestFree);
  need(found, "ucp_tag_msg_recv_nbx", ucx.tagMsgRecvNbx);
  need(found, "ucp_tag_probe_nb", ucx.tagProbeNb);
  need(found, "ucp_tag_recv_nbx", ucx.tagRecvNbx);
  need(found, "ucp_tag_send_sync_nbx", ucx.tagSendSyncNbx);
  need(found, "ucp_worker_arm", ucx.workerArm);
  need(found, "ucp_worker_create", ucx.workerCreate);
  need(found, "ucp_worker_destroy", ucx.workerDestroy);
  need(found, "ucp_worker_get_address", ucx.workerGetAddress);
  need(found, "ucp_worker_get_efd", ucx.workerGetEfd);
  need(found, "ucp_worker_progress", ucx.workerProgress);
  need(found, "ucp_worker_release_address", ucx.workerReleaseAddress);
  need(found, "ucp_worker_signal", ucx.workerSignal);
  need(found, "ucs_status_string", ucx.statusString);
  return found;
}

}  // namespace

const UcxFound& findUcx() {
  static const UcxFound found = open();
  return found;
}

}  // namespace seqpar
