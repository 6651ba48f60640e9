// A process that runs out of memory or of descriptors.
#pragma once

#include <vector>

namespace seqpar::test {

/// While it exists, the process gets no address space beyond `slackKib` more, or no further descriptor.
class ShortOf {
 public:
  enum class What { Memory, Descriptors };
  ShortOf(What what, int slackKib);
  ShortOf(const ShortOf&) = delete;
  ShortOf& operator=(const ShortOf&) = delete;
  ~ShortOf();

 private:
  int resource_;
  unsigned long before_;
  std::vector<int> taken_;  ///< descriptors below the limit
};

}  // namespace seqpar::test
