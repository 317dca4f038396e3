#include "io/npy.hpp"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>
#include <cstring>

#include "cli/temporary_folder.hpp"
#include "io/elements.hpp"

namespace vcattn::cli {
namespace {

using test::TemporaryFolder;

std::string npy_bytes(int version, std::string const& header, std::string const& data) {
  std::string bytes("\x93NUMPY", 6);
  bytes += static_cast<char>(version);
  bytes += '\0';
  for (std::size_t i = 0; i < (version == 1 ? 2u : 4u); ++i)
    bytes += static_cast<char>(static_cast<unsigned char>(header.size() >> (8 * i)));
  return bytes + header + data;
}

template <typename T>
std::string raw(std::vector<T> const& values) {
  return {reinterpret_cast<char const*>(values.data()), values.size() * sizeof(T)};
}

NpyArray read_bytes(std::string const& bytes) {
  TemporaryFolder const folder;
  test::write_file(folder.file("x.npy"), bytes);
  return read_npy(folder.file("x.npy"));
}

std::string read_error(std::string const& bytes) {
  try {
    read_bytes(bytes);
  } catch (Error const& error) {
    return error.what();
  }
  return "";
}

TEST(Npy, ReadsEveryVersion) {
  for (int const version : {1, 2, 3}) {
    auto const array = read_bytes(npy_bytes(version, "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }          \n",
                                            raw(std::vector<float>{0, 1, 2, 3, 4, 5})));
    EXPECT_EQ(array.dtype, DType::f32);
    EXPECT_EQ(array.shape, (std::vector<std::int64_t>{2, 3}));
    for (int i = 0; i < 6; ++i) EXPECT_EQ(load_element(array.data.data(), array.dtype, i), static_cast<float>(i));
  }
}

TEST(Npy, ReadsHalfAndNarrowsDouble) {
  auto const half =
      read_bytes(npy_bytes(1, "{'shape': (2,), 'descr': '<f2', 'fortran_order': False}", raw(std::vector<std::uint16_t>{0x3C00, 0xC200})));
  EXPECT_EQ(half.dtype, DType::f16);
  EXPECT_EQ(load_element(half.data.data(), half.dtype, 0), 1.0f);
  EXPECT_EQ(load_element(half.data.data(), half.dtype, 1), -3.0f);
  auto const wide =
      read_bytes(npy_bytes(1, "{\"descr\": \"<f8\", \"fortran_order\": False, \"shape\": (2, 1)}", raw(std::vector<double>{0.1, -7.0})));
  EXPECT_EQ(wide.dtype, DType::f32);
  EXPECT_EQ(load_element(wide.data.data(), wide.dtype, 0), 0.1f);
  EXPECT_EQ(load_element(wide.data.data(), wide.dtype, 1), -7.0f);
}

TEST(Npy, ReadsEmptyArrays) {
  EXPECT_TRUE(read_bytes(npy_bytes(1, "{'descr': '<f4', 'fortran_order': False, 'shape': (0, 128), }", "")).data.empty());
}

TEST(Npy, RefusesWhatItCannotRead) {
  auto const data = raw(std::vector<float>{1, 2});
  auto const expect = [](std::string const& bytes, char const* message) {
    std::string const error = read_error(bytes);
    EXPECT_NE(error.find(message), std::string::npos) << error;
  };
  expect("", "magic");
  expect("\x93NUMPZ\x01 and more text", "magic");
  expect(npy_bytes(4, "{}", ""), "version 1, 2 or 3");
  expect(npy_bytes(1, "{'descr': '<f4', 'fortran_order': True, 'shape': (2,), }", data), "Fortran");
  expect(npy_bytes(1, "{'descr': '>f4', 'fortran_order': False, 'shape': (2,), }", data), "'<f4'");
  expect(npy_bytes(1, "{'descr': '<i4', 'fortran_order': False, 'shape': (2,), }", data), "'<f4'");
  expect(npy_bytes(1, "{'descr': '<f4', 'fortran_order': False, 'shape': (3,), }", data), "does not fit");
  expect(npy_bytes(1, "{'descr': '<f4', 'fortran_order': False, 'shape': (1,), }", data), "does not fit");
  expect(npy_bytes(1, "{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }", data.substr(0, 7)), "does not fit");
  expect(npy_bytes(1, "{'descr': '<f4', 'fortran_order': False, 'shape': (4294967296, 4294967296), }", data), "does not fit");
  expect(npy_bytes(1, "{'descr': '<f4', 'fortran_order': False, 'shape': (-2,), }", data), "integers >= 0");
  expect(npy_bytes(1, "{'descr': '<f4', 'fortran_order': False, }", data), "exactly descr");
  expect(npy_bytes(1, "{'descr': '<f4', 'descr': '<f4', 'shape': (2,), }", data), "twice");
  expect(npy_bytes(1, "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (2,), }", data), "quoted word");
  expect(npy_bytes(1, "{'descr': '<f4', 'fortran_order': Maybe, 'shape': (2,), }", data), "True or False");
  expect(npy_bytes(1, "{'descr': '<f4', 'color': 'red', 'shape': (2,), }", data), "unknown key");
  expect(npy_bytes(2, "", "").substr(0, 11), "header");
  expect(npy_bytes(1, "{'descr'", "").substr(0, 14), "claims a header");
}

RC_GTEST_PROP(NpyProperty, RandomBytesNeverCrash, (std::string const& header, std::string const& data)) {
  read_error(header + data);
  for (int const version : {1, 2, 3}) read_error(npy_bytes(version, header, data));
}

RC_GTEST_PROP(NpyProperty, DamagedHeadersAreReadOrRefused, ()) {
  std::string text = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }";
  text[*rc::gen::inRange<std::size_t>(0, text.size())] = *rc::gen::arbitrary<char>();
  try {
    NpyHeader const header = parse_npy_header(text);
    for (std::int64_t const extent : header.shape) RC_ASSERT(extent >= 0);
  } catch (Error const& error) {
    RC_ASSERT(error.code() == ErrorCode::io);
  }
}

TEST(Elements, HalfCodesDecodeExactly) {
  for (std::uint32_t code = 0; code < 0x7C00; ++code) {
    std::uint32_t const exponent = code >> 10;
    double const fraction = code & 0x3FF;
    double const expected = exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, static_cast<int>(exponent) - 25);
    EXPECT_EQ(decode_f16(static_cast<std::uint16_t>(code)), expected);
    EXPECT_EQ(decode_f16(static_cast<std::uint16_t>(code | 0x8000u)), -expected);
  }
  EXPECT_TRUE(std::isinf(decode_f16(0x7C00)));
  EXPECT_TRUE(std::isnan(decode_f16(0x7C01)));
}

TEST(Elements, Bf16RoundsToNearestEven) {
  for (std::uint32_t code = 0; code < 0x7F80; ++code) {
    auto const value = decode_bf16(static_cast<std::uint16_t>(code));
    EXPECT_EQ(encode_bf16(value), code);
  }
  EXPECT_EQ(encode_bf16(1.0f + 0x1p-8f), 0x3F80);             // tie, even below
  EXPECT_EQ(encode_bf16(1.0f + 3 * 0x1p-8f), 0x3F82);         // tie, even above
  EXPECT_EQ(encode_bf16(1.0f + 0x1p-8f + 0x1p-20f), 0x3F81);  // just above a tie
}

}  // namespace
}  // namespace vcattn::cli
