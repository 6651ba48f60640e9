// A limit of the process's address space, under which memory and threads cannot be had. Not for sanitizers.
#pragma once

#include <sys/resource.h>

#include <catch2/catch.hpp>
#include <cstddef>
#include <cstdio>

namespace seqpar::test {

/// Limits the address space to `more` bytes beyond the current use, for a scope.
class AddressLimit {
 public:
  explicit AddressLimit(size_t more) {
    REQUIRE(getrlimit(RLIMIT_AS, &before_) == 0);
    long pages = 0;
    std::FILE* const file = std::fopen("/proc/self/statm", "r");
    REQUIRE(file != nullptr);
    REQUIRE(std::fscanf(file, "%ld", &pages) == 1);
    std::fclose(file);
    rlimit limit = before_;
    limit.rlim_cur = static_cast<rlim_t>(pages) * 4096 + more;
    REQUIRE(setrlimit(RLIMIT_AS, &limit) == 0);
  }
  AddressLimit(const AddressLimit&) = delete;
  AddressLimit& operator=(const AddressLimit&) = delete;
  ~AddressLimit() { setrlimit(RLIMIT_AS, &before_); }

 private:
  rlimit before_{};
};

}  // namespace seqpar::test
