#include "parse.hpp"

#include <fmt/format.h>

#include <charconv>

#include "vcattn/types.hpp"

namespace vcattn::cli {

std::int64_t parse_integer(std::string_view option, std::string_view text, std::int64_t minimum, std::int64_t maximum) {
  std::int64_t value = 0;
  char const* const end = text.data() + text.size();
  auto const [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc{} || stop != end || value < minimum || value > maximum) {
    throw Error(ErrorCode::invalid_argument, fmt::format("{}: an integer in {}..{} required, got '{}'", option, minimum, maximum, text));
  }
  return value;
}

std::vector<std::string> parse_words(std::string_view option, std::string_view text) {
  std::vector<std::string> words;
  for (std::size_t begin = 0; begin <= text.size();) {
    std::size_t const end = std::min(text.find(',', begin), text.size());
    words.emplace_back(text.substr(begin, end - begin));
    if (words.back().empty())
      throw Error(ErrorCode::invalid_argument, fmt::format("{}: a list like a,b,c required, got '{}'", option, text));
    begin = end + 1;
  }
  return words;
}

std::vector<std::int64_t> parse_integers(std::string_view option, std::string_view text, std::size_t count, std::int64_t minimum,
                                         std::int64_t maximum) {
  std::vector<std::int64_t> values;
  for (std::string const& word : parse_words(option, text)) values.push_back(parse_integer(option, word, minimum, maximum));
  if (count != 0 && values.size() != count) {
    throw Error(ErrorCode::invalid_argument, fmt::format("{}: {} integers required, got '{}'", option, count, text));
  }
  return values;
}

std::string shortened(std::string_view text, std::size_t limit) {
  if (text.size() <= limit) return std::string(text);
  std::size_t end = limit;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0u) == 0x80u) --end;  // continuation bytes stay with their first byte
  return std::string(text.substr(0, end)) + "...";
}

std::string one_line(std::string_view text) {
  std::string line;
  for (char const c : text) {
    bool const control = static_cast<unsigned char>(c) < 0x20 || c == 0x7F;
    if (!control) {
      line += c;
    } else if (!line.empty() && line.back() != ' ') {
      line += ' ';
    }
  }
  while (!line.empty() && line.back() == ' ') line.pop_back();
  return line;
}

}  // namespace vcattn::cli
