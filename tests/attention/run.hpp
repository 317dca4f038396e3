#pragma once

// Runs attention of an OwnedProblem into doubles.

#include <gtest/gtest.h>

#include <cctype>
#include <string>
#include <vector>

#include "reference/problems.hpp"
#include "vcattn/attention.hpp"

namespace vcattn::testing_support {

struct Output {
  std::vector<double> o, lse;
};

inline MutableTensorView output_view(std::vector<float>& o, std::array<std::int64_t, 4> const& shape) {
  o.assign(static_cast<std::size_t>(shape[0] * shape[1] * shape[2] * shape[3]), std::numeric_limits<float>::quiet_NaN());  // poison
  auto const view = nhd_view(o.data(), DType::f32, shape[0], shape[1], shape[2], shape[3]);
  return {o.data(), DType::f32, view.shape, view.stride};
}

inline Output run(Problem const& problem, Options const& options) {
  std::vector<float> o;
  auto const view = output_view(o, problem.q.shape);
  std::vector<float> lse(static_cast<std::size_t>(problem.q.batch() * problem.q.num_heads() * problem.q.seqlen()),
                         std::numeric_limits<float>::quiet_NaN());
  attend(problem, options, view, lse);
  return {{o.begin(), o.end()}, {lse.begin(), lse.end()}};
}

/// Name of a test that is instantiated per recipe.
inline std::string recipe_case_name(testing::TestParamInfo<Recipe> const& parameter) {
  std::string name(recipe_name(parameter.param));
  for (char& c : name) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
  }
  return name;
}

}  // namespace vcattn::testing_support
