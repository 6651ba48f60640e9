#include "transport/ucx_library.h"

#include "base/error.h"
#include "base/shared_library.h"

namespace seqpar {
namespace {

UcxFound open() {
  UcxFound found;
  UcxLibrary& ucx = found.library;
  const SharedLibrary file("libucp.so.0");
  if (!file.opened()) {
    found.problem = concat("no libucp.so.0 (", file.reason(), ")");
    return found;
  }
  const auto need = [&](const char* name, auto& into) { file.need(name, into, found.problem); };
  need("ucp_cleanup", ucx.cleanup);
  need("ucp_config_modify", ucx.configModify);
  need("ucp_config_read", ucx.configRead);
  need("ucp_config_release", ucx.configRelease);
  need("ucp_context_query", ucx.contextQuery);
  need("ucp_ep_close_nbx", ucx.epCloseNbx);
  need("ucp_ep_create", ucx.epCreate);
  need("ucp_ep_print_info", ucx.epPrintInfo);
  need("ucp_get_version", ucx.getVersion);
  need("ucp_init_version", ucx.initVersion);
  need("ucp_request_cancel", ucx.requestCancel);
  need("ucp_request_check_status", ucx.requestCheckStatus);
  need("ucp_request_free", ucx.requestFree);
  need("ucp_tag_msg_recv_nbx", ucx.tagMsgRecvNbx);
  need("ucp_tag_probe_nb", ucx.tagProbeNb);
  need("ucp_tag_recv_nbx", ucx.tagRecvNbx);
  need("ucp_tag_send_nbx", ucx.tagSendNbx);
  need("ucp_tag_send_sync_nbx", ucx.tagSendSyncNbx);
  need("ucp_worker_arm", ucx.workerArm);
  need("ucp_worker_create", ucx.workerCreate);
  need("ucp_worker_destroy", ucx.workerDestroy);
  need("ucp_worker_get_address", ucx.workerGetAddress);
  need("ucp_worker_get_efd", ucx.workerGetEfd);
  need("ucp_worker_progress", ucx.workerProgress);
  need("ucp_worker_release_address", ucx.workerReleaseAddress);
  need("ucp_worker_signal", ucx.workerSignal);
  need("ucs_status_string", ucx.statusString);
  return found;
}

}  // namespace

const UcxFound& findUcx() {
  static const UcxFound found = open();
  return found;
}

}  // namespace seqpar
