#include "io/safetensors.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>

#include "parse.hpp"
#include "vcattn/types.hpp"

namespace vcattn::cli {
namespace {

using nlohmann::json;

constexpr std::array<std::pair<std::string_view, std::uint64_t>, 15> kDtypeBytes{{{"BOOL", 1},
                                                                                  {"U8", 1},
                                                                                  {"I8", 1},
                                                                                  {"F8_E4M3", 1},
                                                                                  {"F8_E5M2", 1},
                                                                                  {"I16", 2},
                                                                                  {"U16", 2},
                                                                                  {"F16", 2},
                                                                                  {"BF16", 2},
                                                                                  {"I32", 4},
                                                                                  {"U32", 4},
                                                                                  {"F32", 4},
                                                                                  {"I64", 8},
                                                                                  {"U64", 8},
                                                                                  {"F64", 8}}};

constexpr std::uint64_t kLengthBytes = 8;

template <typename... Args>
[[noreturn]] void malformed(fmt::format_string<Args...> format, Args&&... args) {
  throw Error(ErrorCode::io, "not a valid safetensors file: " + fmt::format(format, std::forward<Args>(args)...));
}

/// Nothing for a dtype that this program does not know: only tensors that are used need a known one.
std::optional<std::uint64_t> element_bytes(std::string_view dtype) {
  auto const found = std::ranges::find(kDtypeBytes, dtype, &std::pair<std::string_view, std::uint64_t>::first);
  if (found == kDtypeBytes.end()) return std::nullopt;
  return found->second;
}

/// Bytes of a tensor, nothing when the product exceeds 2^63.
std::optional<std::uint64_t> tensor_bytes(std::span<std::int64_t const> shape, std::uint64_t bytes_per_element) {
  constexpr auto kLimit = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  if (std::ranges::find(shape, 0) != shape.end()) return 0;
  std::uint64_t bytes = bytes_per_element;
  for (std::int64_t const extent : shape) {
    if (bytes > kLimit / static_cast<std::uint64_t>(extent)) return std::nullopt;
    bytes *= static_cast<std::uint64_t>(extent);
  }
  return bytes;
}

/// Refuses an object that names a key twice, which nlohmann::json would silently resolve to the last one.
class DuplicateKeys {
 public:
  bool operator()(int depth, json::parse_event_t event, json const& value) {
    auto const level = static_cast<std::size_t>(depth);
    if (event == json::parse_event_t::object_start) {
      seen_.resize(std::max(seen_.size(), level + 2));
      seen_[level + 1].clear();
    } else if (event == json::parse_event_t::key && !seen_[level].insert(value.get<std::string>()).second) {
      malformed("the header names '{}' twice", shortened(value.get<std::string>()));
    }
    return true;
  }

 private:
  std::vector<std::set<std::string>> seen_;  // by depth
};

json parse_json(std::string_view text) {
  try {
    return json::parse(text, DuplicateKeys{});
  } catch (json::parse_error const& error) {
    malformed("the header is not JSON (byte {}); write it again", error.byte);
  } catch (json::exception const&) {  // a number outside the range of double
    malformed("the header holds a number out of range; write it again");
  }
}

std::int64_t extent_of(std::string const& tensor, json const& value) {
  if (!value.is_number_unsigned() || value.get<std::uint64_t>() > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
    malformed("the shape of tensor '{}' must hold integers >= 0", shortened(tensor));
  }
  return value.get<std::int64_t>();
}

TensorEntry parse_entry(std::string const& name, json const& value, std::uint64_t data_bytes) {
  bool const complete = value.is_object() && value.contains("dtype") && value["dtype"].is_string() && value.contains("shape") &&
                        value["shape"].is_array() && value.contains("data_offsets") && value["data_offsets"].is_array() &&
                        value["data_offsets"].size() == 2;
  if (!complete) malformed("tensor '{}' needs a dtype, a shape and two data_offsets", shortened(name));
  std::string const shown = shortened(name);
  TensorEntry entry{name, value["dtype"].get<std::string>(), {}, 0, 0};
  for (json const& extent : value["shape"]) entry.shape.push_back(extent_of(name, extent));
  for (json const& offset : value["data_offsets"]) {
    if (!offset.is_number_unsigned()) malformed("the data_offsets of tensor '{}' must be integers >= 0", shown);
  }
  entry.begin = value["data_offsets"][0].get<std::uint64_t>();
  entry.end = value["data_offsets"][1].get<std::uint64_t>();
  if (entry.begin > entry.end || entry.end > data_bytes) {
    malformed("tensor '{}' claims bytes {}..{}, the file has {} data bytes; it is truncated or damaged, copy it again", shown, entry.begin,
              entry.end, data_bytes);
  }
  auto const bytes_per_element = element_bytes(entry.dtype);
  auto const required = tensor_bytes(entry.shape, bytes_per_element.value_or(1));
  bool const size_known = bytes_per_element || required == 0;  // no elements, no bytes, whatever the dtype
  if (size_known && required != entry.end - entry.begin) {
    malformed("tensor '{}' ({} [{}]) does not fit the {} bytes that it claims", shown, shortened(entry.dtype),
              shortened(fmt::format("{}", fmt::join(entry.shape, ", "))), entry.end - entry.begin);
  }
  return entry;
}

void check_coverage(std::vector<TensorEntry> const& tensors, std::uint64_t data_bytes) {
  std::uint64_t position = 0;
  for (TensorEntry const& entry : tensors) {
    if (entry.begin < position) malformed("tensor '{}' overlaps the one before it", shortened(entry.name));
    if (entry.begin > position) malformed("{} bytes before tensor '{}' belong to no tensor", entry.begin - position, shortened(entry.name));
    position = entry.end;
  }
  if (position != data_bytes) malformed("{} bytes after the last tensor belong to no tensor", data_bytes - position);
}

void parse_metadata(json const& value, std::map<std::string, std::string>& metadata) {
  if (!value.is_object()) malformed("__metadata__ must be an object of strings");
  for (auto const& [key, text] : value.items()) {
    if (!text.is_string()) malformed("__metadata__ entry '{}' must be a string", shortened(key));
    metadata[key] = text.get<std::string>();
  }
}

std::string header_text(std::span<TensorSpec const> tensors, std::map<std::string, std::string> const& metadata,
                        std::uint64_t& data_bytes) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  data_bytes = 0;
  for (TensorSpec const& tensor : tensors) {
    auto const bytes_per_element = element_bytes(tensor.dtype);
    if (!bytes_per_element)
      throw Error(ErrorCode::internal, fmt::format("tensor '{}' has the unknown dtype {}", tensor.name, tensor.dtype));
    auto const bytes = tensor_bytes(tensor.shape, *bytes_per_element);
    if (!bytes) throw Error(ErrorCode::invalid_argument, fmt::format("tensor '{}' would be larger than 2^63 bytes", tensor.name));
    header[tensor.name] = {{"dtype", tensor.dtype}, {"shape", tensor.shape}, {"data_offsets", {data_bytes, data_bytes + *bytes}}};
    data_bytes += *bytes;
  }
  std::string text = header.dump(-1, ' ', false, json::error_handler_t::replace);
  text.resize((text.size() + kLengthBytes - 1) / kLengthBytes * kLengthBytes, ' ');  // tensor data starts 8-byte aligned
  return text;
}

}  // namespace

SafetensorsHeader parse_safetensors_header(std::string_view json_text, std::uint64_t data_bytes) {
  json const document = parse_json(json_text);
  if (!document.is_object()) malformed("the header must be a JSON object");
  SafetensorsHeader header;
  for (auto const& [name, value] : document.items()) {
    if (name == "__metadata__") {
      parse_metadata(value, header.metadata);
    } else {
      header.tensors.push_back(parse_entry(name, value, data_bytes));
    }
  }
  std::ranges::sort(header.tensors, {}, [](TensorEntry const& entry) { return std::pair(entry.begin, entry.end); });
  check_coverage(header.tensors, data_bytes);
  return header;
}

SafetensorsReader::SafetensorsReader(std::filesystem::path const& path) : file_(path) {
  try {
    if (file_.size() < kLengthBytes) malformed("{} bytes required for the header length, got {}", kLengthBytes, file_.size());
    std::array<std::byte, kLengthBytes> raw;
    file_.read(0, raw);
    std::uint64_t header_bytes = 0;
    for (std::size_t i = 0; i < raw.size(); ++i) header_bytes |= std::to_integer<std::uint64_t>(raw[i]) << (8 * i);
    std::uint64_t const rest = file_.size() - kLengthBytes;
    if (header_bytes > std::min(rest, kMaxHeaderBytes)) {
      malformed("it claims a header of {} bytes, {} follow (at most {} are accepted)", header_bytes, rest, kMaxHeaderBytes);
    }
    std::string text(header_bytes, '\0');
    file_.read(kLengthBytes, std::as_writable_bytes(std::span(text)));
    data_begin_ = kLengthBytes + header_bytes;
    header_ = parse_safetensors_header(text, rest - header_bytes);
  } catch (Error const& error) {
    throw Error(error.code(), fmt::format("'{}': {}", name(), error.what()));
  }
}

TensorEntry const& SafetensorsReader::entry(std::string_view tensor) const {
  auto const found = std::ranges::find(header_.tensors, tensor, &TensorEntry::name);
  if (found != header_.tensors.end()) return *found;
  std::vector<std::string> names;
  for (TensorEntry const& entry : header_.tensors) names.push_back(shortened(entry.name));
  std::ranges::sort(names);
  throw Error(ErrorCode::io, fmt::format("'{}': tensor '{}' required, the file has {}", name(), shortened(tensor),
                                         names.empty() ? "none" : shortened(fmt::format("{}", fmt::join(names, ", ")), 1000)));
}

std::vector<std::byte> SafetensorsReader::read(TensorEntry const& entry) {
  std::vector<std::byte> bytes(entry.end - entry.begin);
  file_.read(data_begin_ + entry.begin, bytes);
  return bytes;
}

SafetensorsWriter::SafetensorsWriter(std::filesystem::path const& path, std::span<TensorSpec const> tensors,
                                     std::map<std::string, std::string> const& metadata)
    : file_(path) {
  std::string const text = header_text(tensors, metadata, bytes_left_);
  std::array<std::byte, kLengthBytes> length;
  for (std::size_t i = 0; i < length.size(); ++i) length[i] = static_cast<std::byte>(text.size() >> (8 * i));
  file_.write(length);
  file_.write(text);
}

void SafetensorsWriter::append(std::span<std::byte const> bytes) {
  if (bytes.size() > bytes_left_) {
    throw Error(ErrorCode::internal, fmt::format("{} bytes written beyond the announced tensors", bytes.size() - bytes_left_));
  }
  file_.write(bytes);
  bytes_left_ -= bytes.size();
}

void SafetensorsWriter::commit() {
  if (bytes_left_ != 0) throw Error(ErrorCode::internal, fmt::format("{} bytes of the announced tensors were not written", bytes_left_));
  file_.commit();
}

}  // namespace vcattn::cli
