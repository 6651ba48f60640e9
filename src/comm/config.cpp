#include "comm/config.h"

#include <unistd.h>

#include <array>
#include <cmath>
#include <cstring>

#include "base/env.h"
#include "base/error.h"
#include "base/versioned.h"

namespace seqpar {
namespace {

constexpr std::array<Choice, 3> kTransports{
    {{"auto", seqparTransportAuto}, {"shared", seqparTransportShared}, {"network", seqparTransportNetwork}}};
constexpr size_t kMostText = 255;
constexpr int kMostCtas = 128;  // fewer than the SMs of supported GPUs: all CTAs must be resident at once
constexpr double kMostTimeoutSeconds = 2e6;

/// Takes an integer field if it is set, checked against [least, most].
void take(const char* call, const char* field, int value, int least, int most, int& into) {
  if (value == SEQPAR_CONFIG_UNDEF_INT) return;
  if (value < least || value > most) {
    fail(seqparInvalidArgument, call, ": config->", field, " is ", value, ", expected ", least, " to ", most);
  }
  into = value;
}

void take(const char* call, const char* field, const char* value, std::string& into) {
  if (value == nullptr) return;
  if (*value == '\0' || strnlen(value, kMostText + 1) > kMostText) {
    fail(seqparInvalidArgument, call, ": config->", field, " is empty or longer than ", kMostText, " bytes");
  }
  into = value;
}

std::string hostName() {
  std::array<char, kMostText + 1> name{};
  if (gethostname(name.data(), name.size() - 1) != 0) failErrno("gethostname");
  return name.data();
}

}  // namespace

CommConfig resolveConfig(const char* call, const seqparConfig_t* config, const CommConfig& parent) {
  CommConfig out = parent;
  if (config != nullptr) {
    const seqparConfig_t given = readVersioned(call, "config", config, seqparConfig_t SEQPAR_CONFIG_INITIALIZER);
    int timeout = static_cast<int>(out.timeout.count());
    int check = out.checkArguments ? 1 : 0;
    take(call, "timeoutMs", given.timeoutMs, 0, 2000000000, timeout);
    take(call, "transport", given.transport, seqparTransportAuto, seqparTransportNetwork, out.transport);
    take(call, "device", given.device, SEQPAR_HOST_DEVICE, 1 << 20, out.device);
    take(call, "checkArguments", given.checkArguments, 0, 1, check);
    take(call, "ctas", given.ctas, 1, kMostCtas, out.ctas);
    take(call, "hostId", given.hostId, out.hostId);
    take(call, "interfaceName", given.interfaceName, out.interfaceName);
    out.timeout = std::chrono::milliseconds(timeout);
    out.checkArguments = check == 1;
  }
  if (const auto seconds = envNumber("SEQPAR_TIMEOUT", 0, kMostTimeoutSeconds)) {
    // Rounded up, so that a positive timeout never becomes "never".
    out.timeout = std::chrono::milliseconds(static_cast<long>(std::ceil(*seconds * 1000)));
  }
  out.transport = envChoice("SEQPAR_TRANSPORT", kTransports).value_or(out.transport);
  if (const auto check = envInteger("SEQPAR_CHECK", 0, 1)) out.checkArguments = *check == 1;
  if (const auto ctas = envInteger("SEQPAR_CTAS", 1, kMostCtas)) out.ctas = static_cast<int>(*ctas);
  if (const auto host = envText("SEQPAR_HOSTID")) {
    if (host->size() > kMostText) {
      fail(seqparInvalidUsage, "environment variable SEQPAR_HOSTID has ", host->size(), " bytes, expected at most ",
           kMostText);
    }
    out.hostId = *host;
  }
  if (const auto name = envText("SEQPAR_SOCKET_IFNAME")) out.interfaceName = *name;
  if (out.hostId.empty()) out.hostId = hostName();
  return out;
}

}  // namespace seqpar
