// Measured constants kept between runs in a text file: one line per placement of ranks. The file may be deleted at any
// time and shared by any number of processes: it is replaced atomically, so readers see an old or a new file, and the
// later of two concurrent writers wins. A line that cannot be read or parsed is ignored and logged.
#pragma once

#include <optional>
#include <string>

#include "plan/link.h"
#include "plan/topology.h"

namespace seqpar {

/// The inputs that the constants depend on, as text without tabs or line ends: the library's version, the ranks that
/// share hosts and processes, the hosts (hashed), their processors, ranks per processor, and the transport.
std::string tuningKey(const Topology& topology, const std::string& transport);

class TuningCache {
 public:
  explicit TuningCache(std::string path) : path_(std::move(path)) {}

  /// The file that SEQPAR_TUNING_CACHE names; none if it is unset, empty or "off".
  static std::optional<TuningCache> fromEnvironment();

  const std::string& path() const { return path_; }
  /// Never throws for a problem with the file.
  std::optional<LinkModel> find(const std::string& key) const;
  /// Adds or replaces a line. Never throws; leaves a file that is not a tuning cache unchanged.
  void store(const std::string& key, const LinkModel& model) const;

 private:
  std::string path_;
};

}  // namespace seqpar
