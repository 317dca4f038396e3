#pragma once

// The page that `vcattn compare --html` writes: one self-contained HTML file with inline styles and SVG.

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "evaluate.hpp"
#include "vcattn/attention.hpp"

namespace vcattn::cli {

/// `shape` as in the JSON record; the problem's q may be a sample of the file's query rows.
std::string comparison_page(std::string const& input, Problem const& problem, nlohmann::ordered_json const& shape,
                            std::vector<RecipeResult> const& results, RunArguments const& run);

}  // namespace vcattn::cli
