// A JSON writer: text grows by one value a call; commas, quotes and nesting are its business.
#pragma once

#include <string>
#include <string_view>

namespace seqpar::perf {

class Json {
 public:
  Json& beginObject() { return open('{'); }
  Json& endObject() { return close('}'); }
  Json& beginArray() { return open('['); }
  Json& endArray() { return close(']'); }

  /// The name of the object member that the next call writes.
  Json& key(std::string_view name);

  Json& text(std::string_view value);
  /// A number that is not finite becomes null.
  Json& number(double value);
  Json& boolean(bool value);

  const std::string& str() const { return out_; }

 private:
  Json& open(char bracket);
  Json& close(char bracket);
  void separate();
  void quote(std::string_view value);

  std::string out_;
  bool first_ = true;      ///< nothing stands before the next value in its object or array
  bool afterKey_ = false;  ///< the next value belongs to a key
};

}  // namespace seqpar::perf
