#include <gtest/gtest.h>

#include <set>
#include <vector>

#include "formats/prepared_layout.hpp"

namespace vcattn {
namespace {

using formats::PreparedLayout;
using formats::Section;

TEST(KeySlot, IsTheDocumentedPermutationOfEveryGroupOfSixteen) {
  constexpr int kExpected[16] = {0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15};
  for (int slot = 0; slot < 128; ++slot) {
    EXPECT_EQ(formats::key_of_slot(slot), slot / 16 * 16 + kExpected[slot % 16]);
    EXPECT_EQ(formats::slot_of_key(formats::key_of_slot(slot)), slot);
  }
}

std::vector<Section> sections(PreparedLayout const& l) {
  return {l.sequences, l.q_codes, l.q_scale_factors,  l.q_descale,      l.q_mean,        l.k_codes, l.k_scale_factors,
          l.k_descale, l.k_high,  l.score_multiplier, l.score_bound,    l.score_variant, l.v_codes, l.v_scale_factors,
          l.v_descale, l.v_mean,  l.v_global_mean,    l.lse_correction, l.permutation};
}

Problem shape_only(std::int64_t b, std::int64_t sq, std::int64_t sk, std::int64_t h, std::int64_t hkv, std::int64_t d) {
  Problem p;
  p.q = nhd_view(nullptr, DType::bf16, b, sq, h, d);
  p.k = nhd_view(nullptr, DType::bf16, b, sk, hkv, d);
  p.v = p.k;
  return p;
}

TEST(Layout, SectionsAreAlignedDisjointAndInsideTheSlab) {
  for (Recipe const recipe : all_recipes()) {
    for (std::int64_t const seqlen : {0, 1, 127, 128, 129, 1023}) {
      PreparedLayout const l = formats::plan_layout(shape_only(2, seqlen, seqlen + 3, 4, 2, 96), recipe_options(recipe)).layout;
      EXPECT_EQ(l.version, formats::kPreparedLayoutVersion);
      std::uint64_t end = 0;
      for (Section const& s : sections(l)) {
        EXPECT_EQ(s.offset % formats::kSectionAlignment, 0u);
        EXPECT_GE(s.offset, end);
        end = s.offset + s.bytes;
      }
      EXPECT_LE(end, l.total_bytes);
      EXPECT_EQ(l.head_dim_padded, 128);
    }
  }
}

TEST(Layout, SizesOfTheEightBitRecipeAreThoseOfTheDocument) {
  PreparedLayout const l = formats::plan_layout(shape_only(1, 200, 300, 2, 1, 128), recipe_options(Recipe::vc8s)).layout;
  EXPECT_EQ(l.q_codes.bytes, 2u * 2 * 128 * 128);  // 2 heads, 2 tiles
  EXPECT_EQ(l.k_codes.bytes, 1u * 3 * 128 * 128);  // 3 tiles
  EXPECT_EQ(l.q_descale.bytes, 2u * 2 * 4);        // one per tile
  EXPECT_EQ(l.v_codes.bytes, l.k_codes.bytes);
  EXPECT_EQ(l.v_mean.bytes, 3u * 128 * 2);  // FP16, one block per tile
  EXPECT_EQ(l.v_descale.bytes, 128u * 4);
  EXPECT_EQ(l.lse_correction.bytes, 2u * 200 * 4);
  EXPECT_EQ(l.permutation.bytes, 300u * 4);
  PreparedLayout const four_bit = formats::plan_layout(shape_only(1, 200, 300, 2, 1, 128), recipe_options(Recipe::vsmooth4)).layout;
  EXPECT_EQ(four_bit.k_codes.bytes, l.k_codes.bytes / 2);
  EXPECT_EQ(four_bit.k_scale_factors.bytes, 3u * 128 * 8);
  EXPECT_EQ(four_bit.v_scale_factors.bytes, 3u * 128 * 8);
}

TEST(Layout, TilesOfRaggedSequencesAreDisjointAndDense) {
  std::vector<std::int32_t> const cu_q = {0, 0, 130, 131};
  std::vector<std::int32_t> const cu_k = {0, 5, 5, 300};
  Problem p = shape_only(1, 131, 300, 4, 2, 64);
  p.cu_seqlens_q = cu_q;
  p.cu_seqlens_k = cu_k;
  auto const plan = formats::plan_layout(p, recipe_options(Recipe::vc8));
  formats::SlabView<std::byte const> const view(plan.layout, nullptr);
  std::set<std::int64_t> q_tiles;
  std::set<std::int64_t> kv_tiles;
  for (auto const& s : plan.sequences) {
    for (std::int64_t h = 0; h < 4; ++h) {
      for (std::int64_t j = 0; j < s.tiles_q; ++j) EXPECT_TRUE(q_tiles.insert(view.tile_q(s, h, j)).second);
    }
    for (std::int64_t h = 0; h < 2; ++h) {
      for (std::int64_t j = 0; j < s.tiles_kv; ++j) EXPECT_TRUE(kv_tiles.insert(view.tile_kv(s, h, j)).second);
    }
  }
  EXPECT_EQ(q_tiles.size(), 4u * 3);
  EXPECT_EQ(*q_tiles.rbegin(), 4 * 3 - 1);
  EXPECT_EQ(kv_tiles.size(), 2u * 4);
  EXPECT_EQ(*kv_tiles.rbegin(), 2 * 4 - 1);
}

TEST(Layout, UnitCodesCannotOverflowAnFp16Accumulator) {
  for (int const width : {32, 64, 128, 256}) {
    EXPECT_LT(formats::unit_query_code_max(width) * 31 * width, 65504);
    EXPECT_LE(formats::kUnitKeyCodeMax, 31);
  }
}

}  // namespace
}  // namespace vcattn
