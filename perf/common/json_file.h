// A run as a JSON file in nccl-tests' version 3, so that its tools read it, with further fields under "seqpar".
#pragma once

#include <memory>
#include <string>

#include "facts.h"
#include "row.h"
#include "settings.h"

namespace seqpar::perf {

struct Totals {
  size_t wrong = 0;
  double bandwidth = 0;  ///< GB/s, the mean of the rows
  bool fastEnough = true;
};

class JsonFile {
 public:
  /// Creates a new file: `path`, or path.0, path.1, ... if that exists. Throws std::runtime_error if it cannot.
  explicit JsonFile(const std::string& path);
  JsonFile(const JsonFile&) = delete;
  JsonFile& operator=(const JsonFile&) = delete;
  ~JsonFile();

  const std::string& path() const { return path_; }
  void begin(const RunFacts& facts, const Settings& settings);
  void row(const Row& row, const Layout& layout, const Settings& settings);
  /// Writes the file.
  void end(const Totals& totals, const Settings& settings);

 private:
  struct Document;
  std::unique_ptr<Document> document_;
  std::string path_;
  int file_ = -1;
};

}  // namespace seqpar::perf
