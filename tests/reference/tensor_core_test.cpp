// The sums of the tensor core of sm_90 against numbers that one (an H200) produced.

#include "reference/tensor_core.hpp"

#include <gtest/gtest.h>

#include <array>
#include <charconv>
#include <cmath>
#include <string_view>

#include "reference/codecs.hpp"

namespace vcattn {
namespace {

using reference::Accumulator;
using reference::Matrix;
using reference::sm90_dot;
using reference::SplitRows;

// Random E4M3 codes, 128 channels a row, in hexadecimal; and what wgmma.m64n128k32 made of them in four steps, from accumulators of 0.
constexpr std::array<std::string_view, 4> kQuery = {
    "4750d8cb4ac141404e48c4cbc03fb7c4cbc6bcb24f47d243bc52a9d04349c952c93e4acb47384c474ac9c6b7492fca3fb2af3843ba4ccc47c94cc9ced3c5382e"
    "3dc6ca42bad1d0ca49cec4c9463f4fc8983fc544b5c94146c441c2503b42c83c4146afbdbf4bc6b6c7cd49bac5d0c3ca38c646c3c022d0364d45374b4bcd51cc",
    "cc9d37493642c94746c0464c3b4aca44c34d4448b8bccacfcaadbb49cc4948d1c233d2464d28c442cbb0ce44ca3f474c30413dc4be3c504cc950cc50bfa8d1a4"
    "b440384ec84d39b946b8b24dba394acd41cfc8b34347492a4a474545cbbf44d132c9c35352b94e31bf5149c5c54f4448c7404424304d46ba3a52c549b64a2dcb",
    "c14d54c45143294cc64a42c9c751c12dc0baa5acc13e43c4c13549c2c0cac2b441463eb8c939c8483d484bcbb023b4bfbac947c131c3373cc248adc1b9bfc1b7"
    "403cabcd45ca47d1cfc44ccac4483749c9293822bac24fcace4ac449bec63f412cc0bbc8c6be4a3a3ac1d1c726c53a2951c53ac7cf4249b0bbd648423ecbc5c6",
    "b049c4c643cc464bcc45c3c2adc743c826c14cc83bd1c74a34bc444c51b7c2b3c341cdbb4bc154c5ce3648d13e4145494740be3e39423b45ac4845c3bf44be3d"
    "4bb050c9cbbd383b51b0c94c46c14ab938c243cdb5bf973ec44346473044aebdc6c940c34642393ec9c2a73db7cbc9bcaeb441c5c3cc384acb433447ba444f38",
};
constexpr std::array<std::string_view, 12> kKey = {
    "32ba47c3c14d4dce4abe42b9d23db42cb3d2c0c92acac3bdc43ec9c9c7c5ceb4c9c0484cc1bc3abad0cfb93b4dc1acba3badbcc9b0c94cb6c7bac94347bd3543"
    "c5414ac0c0c7c3b0cac20a414c41b4c6b74339c9ad22d2b94543c53a43cb3440c0cec2c2bdc949b5b946c944cd2e0836b1aebacbcb424ed04cb43a3549b9bfc7",
    "47c24d4acc4941c4c84748bac9c34acec2373e3e44354a40b348b43aab513eb64645c23dc14ac048b7cdb74b9e4dca3ec149c344b449474b4c504dc53bac3151"
    "4e4545414b38c2cb0ac248ca4a4e42bdc6cc42d34eceb84f48ce413c41ab39ca48c1553427384ead48b74cc743c944a7c950d135bb45464b3f45d03fd14e52cd",
    "4fc92fcac5453b41cb49c2b1a44033c9b73ec948c63bc5c4cbccc93e9bd1a82952a2cb234b4044c5c8bbbecd43b23f2dc64d1939c5cac282b9c9c24a34ca3dbf"
    "40cc343d42cb3bcaadc4504dcdc844424944cb34b84942c112cfbec84c3f352bc94654314f3c3a31c8bf41c2c71441cfc4b3b94245413a49c9514b45c4c5b5d6",
    "b32ebf434d32be3b3939cfbf354a4cb1b1cc4140cacb3a4b3a4335afcbca48ba482c37c340b53539c049c1433f3248c33a3dccc853cd3dc5bbb1cabdc939d044"
    "c04450ce1e3b49c6bcc64c44d23d484c4146433f4d4acd384bc1ca35abc9c94fc9443ccb3dce44b62f473f44434dc239b450c149afcabebec84e4842c2cac443",
    "4bcbc6c9cf48bcca4c4846be4cc43db24c53c64e45c3374bc041c12046c4cac4a44146c0494c37cccac02ec6c324c94acc4acdc4c5c0cacb3ccc463fc6a2c8ce"
    "c9c3474041c2ba49c1c444b2b62d43c24130c036434cd1d1c0c2cdafb73ac74339cfccc049b838414ab4c947b8c9453646c94043cd3dc5cb4aa446c6499638cf",
    "c7c0c845211a52473912b5c3c937b32fb8b838b3c9c9d122c4c6d04342b2c82ebcc22fbb4b46b24db5472bd04630bba849c9c0323f44d23d48cc42adc0c7b6c8"
    "3247afc43ec9c13e55c7c6bdc0c750404a1ec4484b9abf48b7cc3345a3434accc7c2413c0bc546cf4cb4c8ba294aad844f471e2f4a4730c93cb5a22a523a36c9",
    "3c334d39c7c440bfc9cdbc3dcdbe3bb9454ecf44c3bb47b8c4394749bdbaceb94e46cdc14bb2cd48ae3eb8ab43c6bea5c518b5c24f424a49c33cc6b44943c14a"
    "c7c43f423a47433c49bbc9a7c03a35c5c7434535d141cfbba03d3bc454c5cd33b84246c0cdc3c73dc9c24ac3494f3e44d04850c64544c4c9484f41d1be454942",
    "c83acdc8b6c240c0ce49cd4b46c9c8b841c3b940c039384c46183b2ec730481dbc46c34bc8bfc2bc4ab6c54d534052c8c9cd52b4bc4549c93c9a44cacdc04145"
    "503dc027c84841c34bc89e2a4142c0bac5c232bb4919294c49d03c3543c4c04148cd46d33abb4ac3beb64a4540cbcf86b736c84449cbc34b48cd3bc6c3b3bcc6",
    "2538c84343c644c1483fc13d3ccb3ec1c88ec5a8d0c742ccc9bcb0c8b9d3d144534848bdbcc64222444448d04f3dc24abfae42c92ac5cd3a4ab8d0c6bd31413d"
    "cc3dc5b73143294eb54a43bfb9c54ac0492bc24e48c8463c4847503c463cae3ac542bd4409c052c7394322bcce4c4e3dcdc0424c44274bcfbc433b3cc1c8bb31",
    "46aac83c2cbcbe21c9be4ab9c44ed2c745d051514ab8303b4cc3c938b790b249c14036be42adc1d5cac84148c6bfb1c14bc753a0ba3bb938c6bd403e3ed0514f"
    "c7c64d36410db8bc4cc7c4d3413d4348ba4e44413e47b3454d49b5414ac7c4d3c2ccc72a49d045c73bc1ba49c92b4f21bdd443afcb3b42c9c5ce383d4646323e",
    "4a42b6c2c6c543c5cca5bb40b9d050c4becd4c383fb9cb3bcac834512128cc42c2b935c6404abaa3cdca49cc48ab39caa44a54b84253c3c14caec149c740bcbc"
    "cbbfb9313dcb42c9bc4b2e4ab046ccb93d334cd13e3b4cc24dc9afc1c4cd4a52cc04c04f47c73d304352b59f8dc743c4b8c84448cbcacccccfcfca4336312abd",
    "b84acdba4acfabb250c6c249c341c9cdcba1c93bc7cc03c14c48c5ad4ac9c73552c3b7c43b493a4acfc34848c14c4a2bc0ba4d46ce4c32c6494dc3c02b4c3fbe"
    "c440bd27cbbfc949cdbf41c52aca4cbc4843ce38c9bdbabbc350b6bcc54abf40cdc9ab4739d13acbcbbe2cc22350404337c981d4513db74637433d33c2bdb6ba",
};
constexpr double kFp16[4][12] = {
    {-49.9375, -14.5703125, -28.796875, -354.25, 83.0625, 358.75, -347.5, 141.5, -13.515625, 76.5, -138.875, 332.75},
    {11.2109375, 325, 160, -24.703125, -174.75, 59.53125, 150.125, -317.5, 22.09375, -2.84765625, -117, 219.125},
    {231, -232.875, -94.5, 72.625, -174.25, -69.625, -358.75, -166.875, -13.65625, 126.5, 2.1875, -48.78125},
    {-140.625, 156.875, 124.3125, 15.9609375, -155.75, 250.625, -83.375, 141.125, -153, 42.03125, 291.25, 97.8125},
};
constexpr double kFp32[4][12] = {
    {-49.9375, -14.5859375, -28.84375, -354.28125, 83.0859375, 358.625, -347.5625, 141.5625, -13.453125, 76.578125, -138.96875, 333.03125},
    {11.2265625, 325.09375, 160.046875, -24.69140625, -174.859375, 59.4921875, 150.140625, -317.40625, 22.15625, -2.82421875, -116.96875,
     219.15625},
    {231, -232.828125, -94.5234375, 72.625, -174.40625, -69.578125, -358.625, -166.921875, -13.71875, 126.484375, 2.078125, -48.78125},
    {-140.625, 156.828125, 124.34375, 15.951171875, -155.78125, 250.6875, -83.359375, 141.046875, -153.015625, 42.0390625, 291.25,
     97.8046875},
};

template <std::size_t kRows>
Matrix decode(std::array<std::string_view, kRows> const& rows) {
  Matrix values(static_cast<std::int64_t>(kRows), 128);
  for (std::int64_t i = 0; i < values.rows; ++i) {
    for (std::int64_t c = 0; c < values.cols; ++c) {
      std::string_view const digits = rows[static_cast<std::size_t>(i)].substr(static_cast<std::size_t>(2 * c), 2);
      std::uint32_t code = 0;
      std::from_chars(digits.data(), digits.data() + digits.size(), code, 16);
      values(i, c) = reference::e4m3().decode(code);
    }
  }
  return values;
}

TEST(TensorCore, SumsAsMeasuredOnSm90) {
  SplitRows const q = reference::split_e4m3(decode(kQuery));
  SplitRows const k = reference::split_e4m3(decode(kKey));
  for (std::int64_t i = 0; i < q.rows; ++i) {
    for (std::int64_t j = 0; j < k.rows; ++j) {
      EXPECT_EQ(sm90_dot(q, i, k, j, Accumulator::fp16), kFp16[i][j]) << i << " " << j;
      EXPECT_EQ(sm90_dot(q, i, k, j, Accumulator::fp32), kFp32[i][j]) << i << " " << j;
    }
  }
}

/// One rounding at the end is not what the hardware does: these numbers tell the two apart.
TEST(TensorCore, MeasuredSumsAreNotExactOnes) {
  Matrix const q = decode(kQuery);
  Matrix const k = decode(kKey);
  int fp16_differences = 0;
  int fp32_differences = 0;
  for (std::int64_t i = 0; i < q.rows; ++i) {
    for (std::int64_t j = 0; j < k.rows; ++j) {
      double const exact = dot(q, i, k, j);
      fp16_differences += reference::fp16().round(exact) != kFp16[i][j];
      fp32_differences += exact != kFp32[i][j];
    }
  }
  EXPECT_GE(fp16_differences, 10);
  EXPECT_GE(fp32_differences, 30);
}

TEST(TensorCore, FewBitsAreSummedExactly) {
  Matrix ones(2, 64);
  for (std::size_t c = 0; c < ones.data.size(); ++c) ones.data[c] = c % 3 == 0 ? -0.5 : 2.0;
  SplitRows const split = reference::split_e4m3(ones);
  double const exact = dot(ones, 0, ones, 1);
  EXPECT_EQ(sm90_dot(split, 0, split, 1, Accumulator::fp16), exact);
  EXPECT_EQ(sm90_dot(split, 0, split, 1, Accumulator::fp32), exact);
}

TEST(TensorCore, ZerosAndSubnormals) {
  Matrix rows(3, 32);
  rows(1, 5) = 0x1p-9;
  rows(2, 5) = -448;
  SplitRows const split = reference::split_e4m3(rows);
  for (Accumulator const accumulator : {Accumulator::fp16, Accumulator::fp32}) {
    EXPECT_EQ(sm90_dot(split, 0, split, 1, accumulator), 0.0);
    EXPECT_EQ(sm90_dot(split, 1, split, 2, accumulator), -0.875);
  }
}

}  // namespace
}  // namespace vcattn
