#pragma once

#include <string>
#include <string_view>

#include "vcattn/options.hpp"

namespace vcattn::formats {

/// "key=value" of an option, for texts that say what was got.
inline std::string option_text(Options const& options, std::string_view key) {
  for (auto const& [name, value] : describe_options(options)) {
    if (name == key) return std::string(key) + "=" + value;
  }
  return std::string(key);
}

}  // namespace vcattn::formats
