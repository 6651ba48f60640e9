// Measured constants that are remembered from run to run, in a text file: one line for each placement of ranks. The
// file may be deleted at any time, and shared by any number of processes: it is replaced as a whole, so that readers
// see an old one or a new one, and of two writers at once the later wins. What cannot be read or understood is ignored
// with a line in the log.
#pragma once

#include <optional>
#include <string>

#include "plan/link.h"
#include "plan/topology.h"

namespace seqpar {

/// What the constants depend on, as text without tabs or line ends: the library's version, which ranks share hosts and
/// processes, the hosts (hashed), their processors, ranks for each processor, and the transport.
std::string tuningKey(const Topology& topology, const std::string& transport);

class TuningCache {
 public:
  explicit TuningCache(std::string path) : path_(std::move(path)) {}

  /// The file that SEQPAR_TUNING_CACHE names; none if it is unset, empty or "off".
  static std::optional<TuningCache> fromEnvironment();

  const std::string& path() const { return path_; }
  /// Never throws for what is wrong with the file.
  std::optional<LinkModel> find(const std::string& key) const;
  /// Adds or replaces a line. Never throws; a file that is no tuning cache is left alone.
  void store(const std::string& key, const LinkModel& model) const;

 private:
  std::string path_;
};

}  // namespace seqpar
