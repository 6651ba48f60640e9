// The functions of libucp.so.0 that this library uses. It is opened at first use, so that ranks that only use shared
// memory or NCCL run without UCX. Header and library may have different versions.
#pragma once

#include <ucp/api/ucp.h>

#include <string>

namespace seqpar {

/// Typed pointers into the library, under its own names.
struct UcxLibrary {
  decltype(&ucp_cleanup) cleanup = nullptr;
  decltype(&ucp_config_modify) configModify = nullptr;
  decltype(&ucp_config_read) configRead = nullptr;
  decltype(&ucp_config_release) configRelease = nullptr;
  decltype(&ucp_context_query) contextQuery = nullptr;
  decltype(&ucp_ep_close_nbx) epCloseNbx = nullptr;
  decltype(&ucp_ep_create) epCreate = nullptr;
  decltype(&ucp_ep_print_info) epPrintInfo = nullptr;
  decltype(&ucp_get_version) getVersion = nullptr;
  decltype(&ucp_init_version) initVersion = nullptr;
  decltype(&ucp_request_cancel) requestCancel = nullptr;
  decltype(&ucp_request_check_status) requestCheckStatus = nullptr;
  decltype(&ucp_request_free) requestFree = nullptr;
  decltype(&ucp_tag_msg_recv_nbx) tagMsgRecvNbx = nullptr;
  decltype(&ucp_tag_probe_nb) tagProbeNb = nullptr;
  decltype(&ucp_tag_recv_nbx) tagRecvNbx = nullptr;
  decltype(&ucp_tag_send_nbx) tagSendNbx = nullptr;
  decltype(&ucp_tag_send_sync_nbx) tagSendSyncNbx = nullptr;
  decltype(&ucp_worker_arm) workerArm = nullptr;
  decltype(&ucp_worker_create) workerCreate = nullptr;
  decltype(&ucp_worker_destroy) workerDestroy = nullptr;
  decltype(&ucp_worker_get_address) workerGetAddress = nullptr;
  decltype(&ucp_worker_get_efd) workerGetEfd = nullptr;
  decltype(&ucp_worker_progress) workerProgress = nullptr;
  decltype(&ucp_worker_release_address) workerReleaseAddress = nullptr;
  decltype(&ucp_worker_signal) workerSignal = nullptr;
  decltype(&ucs_status_string) statusString = nullptr;
};

/// Result of opening the library; constant for the life of the process.
struct UcxFound {
  UcxLibrary library;
  std::string problem;  ///< text; "" if the library is usable
};
const UcxFound& findUcx();

/// The library; call it only if findUcx() reported no problem.
inline const UcxLibrary& ucx() {
  return findUcx().library;
}

}  // namespace seqpar
