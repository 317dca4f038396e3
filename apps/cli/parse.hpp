#pragma once

// Text of the command line as numbers and lists, with errors that name the option.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace vcattn::cli {

/// Decimal integer in [minimum, maximum]. Errors: ErrorCode::invalid_argument.
std::int64_t parse_integer(std::string_view option, std::string_view text, std::int64_t minimum, std::int64_t maximum);

/// Comma-separated integers, each in [minimum, maximum]; exactly `count` of them unless it is 0.
std::vector<std::int64_t> parse_integers(std::string_view option, std::string_view text, std::size_t count, std::int64_t minimum,
                                         std::int64_t maximum);

/// Comma-separated non-empty words.
std::vector<std::string> parse_words(std::string_view option, std::string_view text);

/// `text` for use in a message: cut behind about `limit` bytes, between two UTF-8 characters.
std::string shortened(std::string_view text, std::size_t limit = 200);

/// `text` on one line: control characters become spaces, runs of them one.
std::string one_line(std::string_view text);

}  // namespace vcattn::cli
