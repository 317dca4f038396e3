// The CPU preparation against the fp64 one, section by section, over odd sizes and every choice.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "core/half.hpp"
#include "formats/codes.hpp"
#include "formats/prepared_layout.hpp"
#include "reference/preparation.hpp"
#include "reference/problems.hpp"
#include "reference/slab.hpp"
#include "vcattn/attention.hpp"

namespace vcattn {
namespace {

using formats::Section;
using testing_support::OwnedProblem;
using testing_support::Sizes;

struct Case {
  Sizes sizes;
  std::string options;  // on top of the recipe
  Recipe recipe;
};

std::string name_of(testing::TestParamInfo<Case> const& info) {
  Case const& c = info.param;
  std::string name = std::string(recipe_name(c.recipe)) + "_q" + std::to_string(c.sizes.seqlen_q) + "_k" +
                     std::to_string(c.sizes.seqlen_kv) + "_d" + std::to_string(c.sizes.head_dim) + "_" + c.options + "_" +
                     std::to_string(info.index);
  for (char& ch : name) {
    if (std::isalnum(static_cast<unsigned char>(ch)) == 0) ch = '_';
  }
  return name;
}

std::vector<Case> cases() {
  std::vector<Case> all;
  std::vector<Sizes> const sizes = {
      {1, 2, 1, 1, 1, 32}, {1, 127, 129, 2, 1, 64}, {2, 130, 257, 2, 2, 96}, {1, 33, 131, 4, 2, 128}, {1, 65, 200, 1, 1, 256}};
  for (Recipe const recipe : all_recipes()) {
    for (Sizes const& s : sizes) all.push_back({s, "", recipe});
  }
  for (char const* options : {"hadamard=off", "k_mean=off", "emc=off", "block=32", "block=64", "qk=int8", "qk_scaling=head",
                              "qk_scaling=block,q_block=32,k_block=64", "rounding=nearest", "rounding=shaped", "v_scaling=head",
                              "scores=f32", "v=nvfp4,v_scaling=head", "v=bf16"}) {
    all.push_back({sizes[2], options, Recipe::vc8});
  }
  all.push_back({sizes[2], "rounding=shaped", Recipe::vc8s});
  all.push_back({sizes[2], "rounding=nearest,hadamard=off", Recipe::vsmooth4});
  return all;
}

template <typename T>
std::span<T const> values_of(std::byte const* slab, Section const& s) {
  return {reinterpret_cast<T const*>(slab + s.offset), s.bytes / sizeof(T)};
}

void expect_close(std::span<float const> ours, std::span<float const> reference, double relative, double absolute, char const* what) {
  ASSERT_EQ(ours.size(), reference.size()) << what;
  for (std::size_t i = 0; i < ours.size(); ++i) {
    double const difference = std::abs(static_cast<double>(ours[i]) - static_cast<double>(reference[i]));
    ASSERT_LE(difference, relative * std::abs(static_cast<double>(reference[i])) + absolute) << what << " at " << i;
  }
}

/// Share of bytes that differ: codes may differ where the fp64 value lies within FP32 rounding of a midpoint.
double share_of_different_bytes(std::byte const* ours, std::byte const* reference, Section const& s) {
  std::size_t different = 0;
  for (std::size_t i = 0; i < s.bytes; ++i) different += ours[s.offset + i] != reference[s.offset + i] ? 1 : 0;
  return s.bytes == 0 ? 0.0 : static_cast<double>(different) / static_cast<double>(s.bytes);
}

using View = formats::SlabView<std::byte const>;

/// Sum of channel d of what the `valid` keys of a tile decode to, block means included, in units of the descale.
double decoded_sum(View const& view, Options const& options, std::int64_t tile, std::int64_t d, std::int64_t valid) {
  formats::PreparedLayout const& l = view.layout();
  std::int64_t const row = tile * l.head_dim_padded + d;
  std::array<float, formats::kTileRows> decoded{};
  auto const* const factors = l.v_scale_factors.bytes == 0 ? nullptr : view.section<std::uint8_t>(l.v_scale_factors) + row * 8;
  formats::decode_row(formats::code_format(options.v), view.section<std::byte>(l.v_codes) + row * formats::kTileRows * l.v_bits / 8,
                      factors, static_cast<int>(decoded.size()), decoded.data());
  double sum = 0;
  for (std::int64_t r = 0; r < valid; ++r) {
    std::int64_t const mean = (tile * formats::kTileRows + r) / options.v_block * l.head_dim_padded + d;
    sum += static_cast<double>(decoded[static_cast<std::size_t>(formats::slot_of_key(static_cast<int>(r)))]) +
           static_cast<double>(core::fp16_decode(view.section<std::uint16_t>(l.v_mean)[mean]));
  }
  return sum;
}

/// Mean of what V decodes to, all means included, [B][Hkv][Dp]: a code or block mean that rounds the other way does not move it. [EQ-EMC]
std::vector<float> decoded_value_means(View const& view, Options const& options) {
  formats::PreparedLayout const& l = view.layout();
  std::vector<float> means;
  for (formats::SequenceExtent const& s : view.sequences()) {
    for (std::int64_t i = 0; i < l.num_heads_kv * l.head_dim_padded; ++i) {
      std::size_t const channel = means.size();
      double sum = 0;
      for (std::int64_t j = 0; j < s.tiles_kv; ++j) {
        sum += decoded_sum(view, options, view.tile_kv(s, i / l.head_dim_padded, j), i % l.head_dim_padded,
                           std::min(formats::kTileRows, s.seqlen_kv - j * formats::kTileRows));
      }
      means.push_back(
          static_cast<float>(static_cast<double>(view.section<float>(l.v_global_mean)[channel]) +
                             sum * static_cast<double>(view.section<float>(l.v_descale)[channel]) / static_cast<double>(s.seqlen_kv)));
    }
  }
  return means;
}

class AgainstReference : public testing::TestWithParam<Case> {};

TEST_P(AgainstReference, SectionsAgree) {
  Case const& c = GetParam();
  OwnedProblem const owned = OwnedProblem::normal(c.sizes, 3);
  auto const permutation = testing_support::random_permutation(c.sizes, c.sizes.seqlen_kv, 5);
  Problem problem = owned.problem();
  problem.permutation = permutation;
  Options options = recipe_options(c.recipe);
  set_options(options, c.options);
  Prepared const prepared = prepare(problem, options);
  auto const reference = reference::pack_slab(problem, options);
  auto const& l = prepared.impl().layout;
  std::byte const* const ours = prepared.impl().slab;
  std::byte const* const theirs = reference.bytes.data();

  ASSERT_EQ(l.total_bytes, reference.layout.total_bytes);
  for (auto const& [section, what] : {std::pair{l.q_descale, "q_descale"},
                                      {l.k_descale, "k_descale"},
                                      {l.v_descale, "v_descale"},
                                      {l.score_multiplier, "score_multiplier"}}) {
    expect_close(values_of<float>(ours, section), values_of<float>(theirs, section), 3e-6, 0.0, what);
  }
  // A stored block mean that rounds the other way moves the global mean by up to its FP16 step, and the two together by nothing.
  bool const compensated = options.v_mean && options.emc;
  expect_close(values_of<float>(ours, l.v_global_mean), values_of<float>(theirs, l.v_global_mean), 1e-5, compensated ? 0x1p-11 : 1e-6,
               "v_global_mean");
  if (compensated) {
    expect_close(decoded_value_means(View(l, ours), options), decoded_value_means(View(l, theirs), options), 1e-5, 1e-6,
                 "decoded mean of V");
  }
  expect_close(values_of<float>(ours, l.q_mean), values_of<float>(theirs, l.q_mean), 1e-5, 2e-6, "q_mean");
  expect_close(values_of<float>(ours, l.lse_correction), values_of<float>(theirs, l.lse_correction), 1e-5, 1e-5, "lse_correction");
  // Rounding of Q and K with feedback amplifies a tie into the rest of its row; an integer of W that rounds the other way reaches all rows,
  // which happens where fewer rows than channels make up the moment.
  bool const shaped = options.qk_rounding != QkRounding::nearest;
  expect_close(values_of<float>(ours, l.score_bound), values_of<float>(theirs, l.score_bound), shaped ? 2e-2 : 1e-3, 0.0, "score_bound");
  double const tolerated = !shaped ? 0.002 : l.head_dim_padded == 256 ? 0.15 : 0.02;
  EXPECT_LE(share_of_different_bytes(ours, theirs, l.q_codes), options.qk == QkFormat::f32 ? 0.6 : tolerated);
  EXPECT_LE(share_of_different_bytes(ours, theirs, l.k_codes), options.qk == QkFormat::f32 ? 0.6 : tolerated);
  EXPECT_LE(share_of_different_bytes(ours, theirs, l.q_scale_factors), 0.002);
  EXPECT_LE(share_of_different_bytes(ours, theirs, l.k_scale_factors), 0.002);
  EXPECT_LE(share_of_different_bytes(ours, theirs, l.v_codes), options.v == VFormat::f32 ? 0.6 : 0.002);
  EXPECT_EQ(0, std::memcmp(ours + l.permutation.offset, theirs + l.permutation.offset, l.permutation.bytes));
  auto const our_means = values_of<std::uint16_t>(ours, l.v_mean);
  auto const their_means = values_of<std::uint16_t>(theirs, l.v_mean);
  for (std::size_t i = 0; i < our_means.size(); ++i) {
    double const reference_mean = static_cast<double>(core::fp16_decode(their_means[i]));
    // One FP16 step, or what a flipped V code moves the compensated mean by.
    ASSERT_NEAR(static_cast<double>(core::fp16_decode(our_means[i])), reference_mean, 0x1p-10 * std::abs(reference_mean) + 0.5) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Matrix, AgainstReference, testing::ValuesIn(cases()), name_of);

}  // namespace
}  // namespace vcattn
