#include "emulator/control_flow.hpp"

#include <algorithm>
#include <set>

namespace vcattn::emulator {

namespace {

struct Block {
  std::uint32_t begin, end;
  std::vector<std::size_t> successors;
};

/// Basic blocks in the order of the code, and a last one that all exits lead to.
std::vector<Block> blocks_of(Kernel const& kernel) {
  auto const size = static_cast<std::uint32_t>(kernel.code.size());
  std::set<std::uint32_t> begins = {0, size};
  for (std::uint32_t i = 0; i < size; ++i) {
    Instruction const& in = kernel.code[i];
    if (is_branch(kernel, in)) begins.insert(in.target);
    if (is_branch(kernel, in) || is_return(kernel, in)) begins.insert(i + 1);
  }
  std::vector<Block> blocks;
  for (auto it = begins.begin(); *it != size; ++it) blocks.push_back({*it, *std::next(it), {}});
  blocks.push_back({size, size, {}});
  auto const block_at = [&](std::uint32_t i) {
    auto const found = std::upper_bound(blocks.begin(), blocks.end(), i, [](std::uint32_t at, Block const& b) { return at < b.begin; });
    return static_cast<std::size_t>(found - blocks.begin()) - 1;
  };
  std::size_t const exit = blocks.size() - 1;
  for (std::size_t b = 0; b < exit; ++b) {
    Instruction const& last = kernel.code[blocks[b].end - 1];
    bool const jump = is_branch(kernel, last);
    bool const leave = is_return(kernel, last);
    if (jump) blocks[b].successors.push_back(block_at(last.target));
    if (leave) blocks[b].successors.push_back(exit);
    if (!(jump || leave) || last.guard >= 0) blocks[b].successors.push_back(b + 1);
  }
  return blocks;
}

/// Immediate post-dominators (Cooper, Harvey, Kennedy: "A Simple, Fast Dominance Algorithm", on the reversed graph).
std::vector<std::size_t> post_dominators(std::vector<Block> const& blocks) {
  std::size_t const exit = blocks.size() - 1;
  std::size_t const none = blocks.size();
  std::vector<std::vector<std::size_t>> predecessors(blocks.size());
  for (std::size_t b = 0; b < blocks.size(); ++b) {
    for (std::size_t const s : blocks[b].successors) predecessors[s].push_back(b);
  }
  // Post-order of the reversed graph, from the exit.
  std::vector<std::size_t> order, number(blocks.size(), none);
  std::vector<bool> seen(blocks.size());
  std::vector<std::pair<std::size_t, std::size_t>> stack = {{exit, 0}};
  seen[exit] = true;
  while (!stack.empty()) {
    auto& [b, next] = stack.back();
    if (next < predecessors[b].size()) {
      std::size_t const p = predecessors[b][next++];
      if (!seen[p]) {
        seen[p] = true;
        stack.emplace_back(p, 0);
      }
    } else {
      number[b] = order.size();
      order.push_back(b);
      stack.pop_back();
    }
  }
  std::vector<std::size_t> result(blocks.size(), none);
  result[exit] = exit;
  auto const common = [&](std::size_t a, std::size_t b) {
    while (a != b) {
      while (number[a] < number[b]) a = result[a];
      while (number[b] < number[a]) b = result[b];
    }
    return a;
  };
  for (bool changed = true; changed;) {
    changed = false;
    for (auto b = order.rbegin(); b != order.rend(); ++b) {
      if (*b == exit) continue;
      std::size_t found = none;
      for (std::size_t const s : blocks[*b].successors) {
        if (result[s] == none) continue;
        found = found == none ? s : common(s, found);
      }
      if (found != result[*b]) {
        result[*b] = found;
        changed = true;
      }
    }
  }
  return result;
}

}  // namespace

bool is_branch(Kernel const& kernel, Instruction const& in) {
  std::string const& name = kernel.form_names[in.form];
  return name == "bra" || name == "bra.uni";
}
bool is_return(Kernel const& kernel, Instruction const& in) {
  std::string const& name = kernel.form_names[in.form];
  return name == "ret" || name == "exit";
}

void set_reconvergence(Kernel& kernel) {
  std::vector<Block> const blocks = blocks_of(kernel);
  std::vector<std::size_t> const dominators = post_dominators(blocks);
  for (std::size_t b = 0; b + 1 < blocks.size(); ++b) {
    Instruction& last = kernel.code[blocks[b].end - 1];
    std::size_t const at = dominators[b] < blocks.size() ? dominators[b] : blocks.size() - 1;
    if (is_branch(kernel, last)) last.reconverge = blocks[at].begin;
  }
}

}  // namespace vcattn::emulator
