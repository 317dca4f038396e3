#include "emulator/proof/vectors.hpp"

#include <algorithm>
#include <cstring>
#include <fstream>
#include <iomanip>
#include <limits>
#include <sstream>
#include <stdexcept>

namespace vcattn::emulator::proof {

std::vector<std::uint64_t> block_hashes(std::vector<std::uint8_t> const& bytes) {
  std::vector<std::uint64_t> hashes;
  for (std::size_t begin = 0; begin < bytes.size(); begin += kBlockBytes) {
    std::uint64_t hash = 0xCBF29CE484222325u;
    for (std::size_t i = begin; i < std::min(begin + kBlockBytes, bytes.size()); ++i) hash = (hash ^ bytes[i]) * 0x100000001B3u;
    hashes.push_back(hash);
  }
  return hashes;
}

std::vector<std::uint32_t> result_words(std::vector<std::uint8_t> const& bytes) {
  std::vector<std::uint32_t> words(bytes.size() / 8);
  for (std::size_t i = 0; i < words.size(); ++i) std::memcpy(&words[i], bytes.data() + 8 * i, 4);
  return words;
}

Vectors read_vectors(std::string const& path) {
  std::ifstream in(path);
  if (!in) throw std::runtime_error("cannot open " + path);
  Vectors vectors;
  for (std::string line; std::getline(in, line);) {
    if (line.empty() || line[0] == '#') continue;
    auto const space = line.find(' ');
    std::string const kind = line.substr(0, space), rest = line.substr(std::min(space, line.size() - 1) + 1);
    if (kind != "hashes" && kind != "words") {
      vectors.conditions[kind] = rest;
      continue;
    }
    std::string data;
    if (!std::getline(in, data)) throw std::runtime_error(path + ": nothing after " + line);
    std::istringstream numbers(data);
    numbers >> std::hex;
    if (kind == "hashes") {
      auto& list = vectors.hashes[rest];
      for (std::uint64_t x; numbers >> x;) list.push_back(x);
    } else {
      auto& list = vectors.words[rest];
      for (std::uint32_t x; numbers >> x;) list.push_back(x);
    }
    if (!numbers.eof()) throw std::runtime_error(path + ": no numbers after " + line);
  }
  return vectors;
}

void write_vectors(std::string const& path, Vectors const& vectors) {
  std::ofstream out(path);
  out << "# Results of a GPU for the programs of emulator/proof: FNV-1a of each 2,048 bytes, or the results themselves.\n";
  for (auto const& [name, value] : vectors.conditions) out << name << ' ' << value << '\n';
  auto const list = [&](char const* kind, auto const& entries, int digits) {
    for (auto const& [name, numbers] : entries) {
      out << kind << ' ' << name << '\n' << std::hex << std::setfill('0');
      for (std::size_t i = 0; i < numbers.size(); ++i) out << (i == 0 ? "" : " ") << std::setw(digits) << numbers[i];
      out << '\n';
    }
  };
  list("hashes", vectors.hashes, 16);
  list("words", vectors.words, 8);
  if (!out) throw std::runtime_error("cannot write " + path);
}

std::uint32_t distance(std::uint32_t a, std::uint32_t b) {
  auto const is_nan = [](std::uint32_t x) { return (x & 0x7FFFFFFFu) > 0x7F800000u; };
  if (is_nan(a) || is_nan(b)) return a == b ? 0 : std::numeric_limits<std::uint32_t>::max();
  auto const order = [](std::uint32_t x) {
    auto const magnitude = static_cast<std::int64_t>(x & 0x7FFFFFFFu);
    return (x >> 31) != 0 ? -magnitude : magnitude;
  };
  std::int64_t const d = order(a) - order(b);
  return static_cast<std::uint32_t>(d < 0 ? -d : d);
}

std::string difference(Program const& program, std::vector<std::uint8_t> const& output, Vectors const& vectors) {
  std::ostringstream text;
  if (program.tolerance != 0) {
    auto const found = vectors.words.find(program.name);
    if (found == vectors.words.end()) return "no stored results";
    auto const words = result_words(output);
    if (words.size() != found->second.size()) return "another number of results";
    for (std::size_t i = 0; i < words.size(); ++i) {
      std::uint32_t const d = distance(words[i], found->second[i]);
      if (d <= program.tolerance) continue;
      text << "result " << i << " is " << std::hex << words[i] << ", on the GPU " << found->second[i];
      return text.str();
    }
    return "";
  }
  auto const found = vectors.hashes.find(program.name);
  if (found == vectors.hashes.end()) return "no stored results";
  auto const hashes = block_hashes(output);
  if (hashes.size() != found->second.size()) return "another number of results";
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < hashes.size(); ++i) {
    if (hashes[i] == found->second[i]) continue;
    if (wrong++ == 0) text << "bytes " << i * kBlockBytes << " to " << std::min((i + 1) * kBlockBytes, output.size()) - 1;
  }
  if (wrong > 0) text << ", and " << wrong - 1 << " more blocks of " << hashes.size();
  return text.str();
}

}  // namespace vcattn::emulator::proof
