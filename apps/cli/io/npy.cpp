#include "io/npy.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <charconv>
#include <cstring>
#include <limits>
#include <set>
#include <span>
#include <utility>

#include "io/input_file.hpp"
#include "parse.hpp"

namespace vcattn::cli {
namespace {

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr std::uint64_t kMaxHeaderBytes = 1'000'000;

template <typename... Args>
[[noreturn]] void malformed(fmt::format_string<Args...> format, Args&&... args) {
  throw Error(ErrorCode::io, "not a readable .npy file: " + fmt::format(format, std::forward<Args>(args)...));
}

/// Recursive-descent reader of the subset of Python literals that NumPy writes.
class DictReader {
 public:
  explicit DictReader(std::string_view text) : rest_(text) {}

  NpyHeader parse() {
    NpyHeader header;
    std::set<std::string> keys;
    expect('{');
    while (!accept('}')) {
      std::string const key = quoted();
      if (!keys.insert(key).second) malformed("its header names '{}' twice", shortened(key));
      expect(':');
      parse_value(key, header);
      if (!accept(',')) {
        expect('}');
        break;
      }
    }
    skip_space();
    if (!rest_.empty() || keys.size() != 3) malformed("its header must hold exactly descr, fortran_order and shape");
    return header;
  }

 private:
  void parse_value(std::string const& key, NpyHeader& header) {
    if (key == "descr") {
      header.descr = quoted();
    } else if (key == "fortran_order") {
      header.fortran_order = boolean();
    } else if (key == "shape") {
      header.shape = tuple();
    } else {
      malformed("its header has the unknown key '{}'", shortened(key));
    }
  }

  void skip_space() { rest_.remove_prefix(std::min(rest_.find_first_not_of(" \t\r\n"), rest_.size())); }

  bool accept(char wanted) {
    skip_space();
    if (rest_.empty() || rest_.front() != wanted) return false;
    rest_.remove_prefix(1);
    return true;
  }

  void expect(char wanted) {
    if (!accept(wanted)) malformed("'{}' required in its header, got '{}'", wanted, rest_.substr(0, 12));
  }

  std::string quoted() {
    skip_space();
    char const quote = rest_.empty() ? '\0' : rest_.front();
    std::size_t const end = quote == '\'' || quote == '"' ? rest_.find(quote, 1) : std::string_view::npos;
    if (end == std::string_view::npos) malformed("a quoted word required in its header, got '{}'", rest_.substr(0, 12));
    std::string const word(rest_.substr(1, end - 1));
    rest_.remove_prefix(end + 1);
    return word;
  }

  bool boolean() {
    skip_space();
    for (auto const& [word, value] : {std::pair<std::string_view, bool>{"True", true}, {"False", false}}) {
      if (rest_.starts_with(word)) {
        rest_.remove_prefix(word.size());
        return value;
      }
    }
    malformed("True or False required in its header, got '{}'", rest_.substr(0, 12));
  }

  std::vector<std::int64_t> tuple() {
    std::vector<std::int64_t> values;
    expect('(');
    while (!accept(')')) {
      skip_space();
      std::int64_t value = 0;
      auto const [end, error] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), value);
      if (error != std::errc{} || value < 0) malformed("its shape must hold integers >= 0, got '{}'", rest_.substr(0, 12));
      values.push_back(value);
      rest_.remove_prefix(static_cast<std::size_t>(end - rest_.data()));
      if (!accept(',')) {
        expect(')');
        break;
      }
    }
    return values;
  }

  std::string_view rest_;
};

/// Header text and the offset of the data behind it.
std::pair<std::string, std::uint64_t> read_header(InputFile& file) {
  std::array<std::byte, 12> raw{};
  std::uint64_t const prefix = std::min<std::uint64_t>(raw.size(), file.size());
  file.read(0, std::span(raw).first(prefix));
  if (prefix < 10 || std::memcmp(raw.data(), kMagic.data(), kMagic.size()) != 0) malformed("it does not start with the NumPy magic string");
  int const version = std::to_integer<int>(raw[6]);
  if (version < 1 || version > 3) malformed("version 1, 2 or 3 required, got {}", version);
  std::uint64_t const length_bytes = version == 1 ? 2 : 4;
  std::uint64_t const text_begin = 8 + length_bytes;
  std::uint64_t header_bytes = 0;
  for (std::uint64_t i = 0; i < length_bytes; ++i) header_bytes |= std::to_integer<std::uint64_t>(raw[8 + i]) << (8 * i);
  if (header_bytes > kMaxHeaderBytes || file.size() < text_begin || header_bytes > file.size() - text_begin) {
    malformed("it claims a header of {} bytes, the file has {} bytes", header_bytes, file.size());
  }
  std::string text(header_bytes, '\0');
  file.read(text_begin, std::as_writable_bytes(std::span(text)));
  return {std::move(text), text_begin + header_bytes};
}

std::uint64_t element_bytes(NpyHeader const& header) {
  if (header.descr == "<f2") return 2;
  if (header.descr == "<f4") return 4;
  if (header.descr == "<f8") return 8;
  malformed("dtype '<f2', '<f4' or '<f8' required, got '{}'; convert with .astype('float32')", shortened(header.descr));
}

void check_size(NpyHeader const& header, std::uint64_t bytes_per_element, std::uint64_t data_bytes) {
  // Every extent of a non-empty array is at most the file size, so comparing by division cannot overflow.
  std::uint64_t elements_left = data_bytes / bytes_per_element;
  bool fits = data_bytes % bytes_per_element == 0;
  bool empty = false;
  for (std::int64_t const extent : header.shape) {
    if (extent == 0) {
      empty = true;
    } else {
      fits = fits && elements_left % static_cast<std::uint64_t>(extent) == 0;
      elements_left /= static_cast<std::uint64_t>(extent);
    }
  }
  fits = empty ? data_bytes == 0 : fits && elements_left == 1;
  if (!fits) {
    malformed("shape ({}) of '{}' does not fit its {} data bytes; it is truncated or damaged, save it again",
              shortened(fmt::format("{}", fmt::join(header.shape, ", "))), header.descr, data_bytes);
  }
}

std::vector<std::byte> doubles_to_floats(std::vector<std::byte> const& bytes) {
  std::vector<std::byte> result(bytes.size() / 2);
  for (std::size_t i = 0; i < bytes.size() / sizeof(double); ++i) {
    double wide;
    std::memcpy(&wide, bytes.data() + i * sizeof wide, sizeof wide);
    auto const narrow = static_cast<float>(wide);
    std::memcpy(result.data() + i * sizeof narrow, &narrow, sizeof narrow);
  }
  return result;
}

NpyArray read_array(InputFile& file) {
  auto const [text, data_begin] = read_header(file);
  NpyHeader const header = parse_npy_header(text);
  std::uint64_t const bytes_per_element = element_bytes(header);
  if (header.fortran_order) malformed("C order required, got Fortran order; save np.ascontiguousarray(x)");
  check_size(header, bytes_per_element, file.size() - data_begin);
  NpyArray array{bytes_per_element == 2 ? DType::f16 : DType::f32, header.shape, std::vector<std::byte>(file.size() - data_begin)};
  file.read(data_begin, array.data);
  if (bytes_per_element == 8) array.data = doubles_to_floats(array.data);
  return array;
}

}  // namespace

NpyHeader parse_npy_header(std::string_view text) { return DictReader(text).parse(); }

NpyArray read_npy(std::filesystem::path const& path) {
  InputFile file(path);
  try {
    return read_array(file);
  } catch (Error const& error) {
    throw Error(error.code(), fmt::format("'{}': {}", file.name(), error.what()));
  }
}

}  // namespace vcattn::cli
