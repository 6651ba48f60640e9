// Command lines of the text examples, and their input file.
#pragma once

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "ranks.h"

struct Options {
  std::string file = "/usr/share/common-licenses/GPL-3";
  int ranks = 4;
  size_t repeat = 5;
  size_t tokens = 0;  ///< 0: all of the file
  bool gpu = false;
};

inline int parseNumber(const std::string& option, const char* text, int most) {
  char* end = nullptr;
  const long number = text != nullptr ? std::strtol(text, &end, 10) : 0;
  if (text == nullptr || end == text || *end != '\0' || number < 1 || number > most) {
    throw std::invalid_argument(option + " is " + (text != nullptr ? text : "missing") +
                                ", expected a number from 1 to " + std::to_string(most));
  }
  return static_cast<int>(number);
}

/// [FILE] [--ranks N] [--repeat N], [--gpu] if there are GPUs, [--tokens N] if it has a default. Throws
/// std::invalid_argument.
inline Options parseOptions(int count, char** words, bool knowsGpus, size_t defaultTokens = 0) {
  Options options;
  options.tokens = defaultTokens;
  bool named = false;
  for (int i = 1; i < count; ++i) {
    const std::string word = words[i];
    if (word == "--ranks") {
      options.ranks = parseNumber(word, words[++i], 1024);
    } else if (word == "--repeat") {
      options.repeat = static_cast<size_t>(parseNumber(word, words[++i], 1024));
    } else if (word == "--gpu" && knowsGpus) {
      options.gpu = true;
    } else if (word == "--tokens" && defaultTokens != 0) {
      options.tokens = static_cast<size_t>(parseNumber(word, words[++i], 1 << 20));
    } else if (word.size() > 1 && word[0] == '-') {
      throw std::invalid_argument("unknown option " + word);
    } else if (named) {
      throw std::invalid_argument("two files: " + options.file + " and " + word);
    } else {
      options.file = word;
      named = true;
    }
  }
  return options;
}

using Text = std::vector<unsigned char>;

/// The bytes of a file; nothing, after an error message, if it cannot be read or is empty.
inline std::optional<Text> readFile(const std::string& program, const std::string& path) {
  if (std::filesystem::is_directory(path)) {
    std::cerr << program << ": " << path << " is a directory, expected a file\n";
    return {};
  }
  std::ifstream file(path, std::ios::binary);
  Text text;
  if (file) text.assign(std::istreambuf_iterator<char>(file), {});
  if (!file || file.bad()) {
    std::cerr << program << ": cannot read " << path << ": " << std::strerror(errno) << '\n';
    return {};
  }
  if (text.empty()) {
    std::cerr << program << ": " << path << " is empty, expected at least one byte\n";
    return {};
  }
  return text;
}

/// Rank 0's file on every rank; nothing if rank 0 could not read it.
inline std::optional<Text> shareFile(const Ranks& ranks, const std::string& program, const Options& options) {
  std::optional<Text> text;
  if (ranks.rank() == 0) text = readFile(program, options.file);
  if (text && options.tokens != 0 && text->size() > options.tokens) text->resize(options.tokens);
  uint64_t size = text ? text->size() : 0;
  ranks.broadcast(std::span(&size, 1));
  if (size == 0) return {};
  if (!text) text.emplace(size);
  ranks.broadcast(std::span(*text));
  return text;
}
