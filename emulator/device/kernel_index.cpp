#include "emulator/device/kernel_index.hpp"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <sstream>

#include "emulator/fault.hpp"
#include "emulator/loader.hpp"

namespace vcattn::emulator {

namespace {

/// Symbols in unnamed namespaces carry a hash that differs between compilations of one source.
std::string without_hash(std::string const& symbol) {
  static std::regex const kUnnamed("[0-9]+_GLOBAL__N__[0-9a-f]{8}_[0-9]+_(\\w+?)_[0-9a-f]{8}");
  return symbol.find("_GLOBAL__N__") == std::string::npos ? symbol : std::regex_replace(symbol, kUnnamed, "_GLOBAL__N_$1");
}

struct PtxFile {
  LazyModule module;
  std::map<std::string, std::string> symbols;  // without hash, as they are
};

PtxFile& ptx_file(std::string const& path) {
  static std::map<std::string, PtxFile> files;
  if (auto const found = files.find(path); found != files.end()) return found->second;
  std::ifstream in(path);
  if (!in) throw LoadError("cannot open " + path);
  std::stringstream text;
  text << in.rdbuf();
  PtxFile file{LazyModule(text.str()), {}};
  for (std::string const& symbol : file.module.kernel_names()) file.symbols[without_hash(symbol)] = symbol;
  return files.emplace(path, std::move(file)).first->second;
}

/// Paths of the PTX files of a folder, in a fixed order.
std::vector<std::string> const& ptx_paths(std::string const& folder) {
  static std::map<std::string, std::vector<std::string>> folders;
  auto const [found, added] = folders.try_emplace(folder);
  if (added) {
    if (!std::filesystem::is_directory(folder)) throw LoadError("no folder " + folder);
    for (auto const& entry : std::filesystem::directory_iterator(folder)) {
      if (entry.path().extension() == ".ptx") found->second.push_back(entry.path().string());
    }
    std::sort(found->second.begin(), found->second.end());
  }
  return found->second;
}

/// File and symbol there.
std::pair<std::string, std::string> find(std::string const& symbol, std::vector<std::string> const& folders) {
  std::string const name = without_hash(symbol);
  for (std::string const& folder : folders) {
    for (std::string const& path : ptx_paths(folder)) {
      auto const& symbols = ptx_file(path).symbols;
      if (auto const found = symbols.find(name); found != symbols.end()) return {path, found->second};
    }
  }
  throw LoadError("no PTX file of the emulated device has the kernel " + symbol +
                  "; build vcattn_ptx, with VCATTN_EMULATE_ALL for FP16 tensors");
}

}  // namespace

FoundKernel find_kernel(std::string const& symbol, std::vector<std::string> const& folders) {
  auto const [path, name] = find(symbol, folders);
  try {
    return {ptx_file(path).module.with_kernel(name), name};
  } catch (LoadError const& error) {
    throw LoadError(path + ": " + error.what());
  }
}

}  // namespace vcattn::emulator
