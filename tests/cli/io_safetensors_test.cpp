#include "io/safetensors.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cstring>

#include "cli/temporary_folder.hpp"
#include "vcattn/types.hpp"

namespace vcattn::cli {
namespace {

using test::TemporaryFolder;

std::string with_length(std::string const& header, std::string const& data) {
  std::string bytes(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) bytes[i] = static_cast<char>(static_cast<unsigned char>(header.size() >> (8 * i)));
  return bytes + header + data;
}

std::string open_error(std::string const& bytes) {
  TemporaryFolder const folder;
  test::write_file(folder.file("x.safetensors"), bytes);
  try {
    SafetensorsReader const reader(folder.file("x.safetensors"));
  } catch (Error const& error) {
    return error.what();
  }
  return "";
}

std::string tensor(char const* name, char const* dtype, char const* shape, char const* offsets) {
  return fmt::format(R"("{}":{{"dtype":"{}","shape":[{}],"data_offsets":[{}]}})", name, dtype, shape, offsets);
}

TEST(Safetensors, RoundTrip) {
  TemporaryFolder const folder;
  std::string const path = folder.file("x.safetensors");
  std::vector<float> const a{1.5f, -2.0f, 3.25f, 0.0f, 5.0f, 6.0f};
  std::vector<std::int32_t> const b{7, -8};
  {
    std::vector<TensorSpec> const specs{{"a", "F32", {1, 2, 3, 1}}, {"b", "I32", {2}}, {"none", "BF16", {0, 4}}};
    SafetensorsWriter writer(path, specs, {{"seed", "7"}});
    writer.append(std::as_bytes(std::span(a)));
    writer.append(std::as_bytes(std::span(b)));
    writer.commit();
  }
  SafetensorsReader reader(path);
  EXPECT_EQ(reader.header().metadata.at("seed"), "7");
  EXPECT_EQ(reader.entry("a").shape, (std::vector<std::int64_t>{1, 2, 3, 1}));
  auto const bytes_a = reader.read(reader.entry("a"));
  ASSERT_EQ(bytes_a.size(), a.size() * sizeof(float));
  EXPECT_EQ(std::memcmp(bytes_a.data(), a.data(), bytes_a.size()), 0);
  auto const bytes_b = reader.read(reader.entry("b"));
  ASSERT_EQ(bytes_b.size(), b.size() * sizeof(std::int32_t));
  EXPECT_EQ(std::memcmp(bytes_b.data(), b.data(), bytes_b.size()), 0);
  EXPECT_TRUE(reader.read(reader.entry("none")).empty());
}

TEST(Safetensors, DataStartsAligned) {
  TemporaryFolder const folder;
  std::string const path = folder.file("x.safetensors");
  std::vector<TensorSpec> const specs{{"odd_name", "F32", {1}}};
  SafetensorsWriter writer(path, specs, {});
  float const value = 1;
  writer.append(std::as_bytes(std::span(&value, 1)));
  writer.commit();
  EXPECT_EQ((test::read_file(path).size() - sizeof value) % 8, 0u);
}

TEST(Safetensors, ReadsAnUnalignedHeader) {
  std::string const header = R"({"q":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}} )";
  EXPECT_EQ(open_error(with_length(header, "abcd")), "");
  EXPECT_EQ(open_error(with_length(header + " ", "abcd")), "");
}

TEST(Safetensors, ListsTensorsOfUnknownDtypes) {
  for (char const* dtype : {"F8_E8M0", "F4", "F6_E2M3", "C64", "of the future"}) {
    std::string const header = "{" + tensor("scale", dtype, "2", "0,1") + "," + tensor("q", "F32", "1", "1,5") + "}";
    TemporaryFolder const folder;
    test::write_file(folder.file("x"), with_length(header, "sabcd"));
    SafetensorsReader reader(folder.file("x"));
    EXPECT_EQ(reader.entry("scale").dtype, dtype);
    EXPECT_EQ(reader.read(reader.entry("q")).size(), 4u);
  }
}

TEST(Safetensors, LongNamesAreShortenedInErrors) {
  std::string const name(100000, 'n');
  std::string const entry = tensor(name.c_str(), "F32", "1", "0,4");
  for (std::string const& header : {"{" + entry + "}", "{" + entry + "," + entry + "}", R"({"__metadata__":{")" + name + R"(":1}})"}) {
    std::string const error = open_error(with_length(header, ""));
    EXPECT_NE(error, "");
    EXPECT_LT(error.size(), 1000u);
  }
}

TEST(AtomicFile, TakesTheLongestLegalName) {
  TemporaryFolder const folder;
  std::string const name(255, 'n');
  AtomicFile file(folder.file(name));
  file.write("text");
  file.commit();
  EXPECT_EQ(folder.names(), std::vector<std::string>{name});
  EXPECT_THROW(AtomicFile(folder.file(name + "n")), Error);
}

TEST(AtomicFile, SkipsTemporaryNamesThatExist) {
  TemporaryFolder const folder;
  std::string first;
  {
    AtomicFile const file(folder.file("x"));
    first = folder.names().at(0);
  }
  std::size_t const dash = first.rfind('-');
  std::uint64_t const number = std::stoull(first.substr(dash + 1));
  for (std::uint64_t next = number + 1; next < number + 6; ++next) {
    test::write_file(folder.file(fmt::format("{}{}.tmp", first.substr(0, dash + 1), next)), "stale");
  }
  AtomicFile file(folder.file("x"));
  file.write("text");
  file.commit();
  EXPECT_EQ(test::read_file(folder.file("x")), "text");
}

TEST(AtomicFile, DistinctPaths) {
  TemporaryFolder const folder;
  std::string const x = folder.file("x");
  auto const refused = [](std::vector<NamedPath> const& outputs, std::vector<NamedPath> const& inputs) {
    try {
      require_distinct_paths(outputs, inputs);
    } catch (Error const& error) {
      return error.code() == ErrorCode::invalid_argument;
    }
    return false;
  };
  EXPECT_TRUE(refused({{"a", x}, {"b", x}}, {}));
  EXPECT_TRUE(refused({{"a", x}}, {{"b", x}}));
  EXPECT_TRUE(refused({{"a", x}, {"b", folder.file("./y/../x")}}, {}));
  EXPECT_TRUE(refused({{"a", "name"}, {"b", "./name"}}, {}));
  EXPECT_FALSE(refused({{"a", x}, {"b", folder.file("y")}}, {{"c", folder.file("z")}, {"d", folder.file("z")}}));
  EXPECT_FALSE(refused({{"a", ""}, {"b", ""}}, {{"c", ""}}));
  EXPECT_FALSE(refused({{"a", "/dev/null"}, {"b", "/dev/null"}}, {}));
  test::write_file(x, "");
  std::filesystem::create_symlink(x, folder.file("link"));
  EXPECT_TRUE(refused({{"a", folder.file("link")}}, {{"b", x}}));
}

TEST(Safetensors, UncommittedFileIsRemoved) {
  TemporaryFolder const folder;
  {
    std::vector<TensorSpec> const specs{{"a", "F32", {1}}};
    SafetensorsWriter writer(folder.file("x"), specs, {});
    EXPECT_THROW(writer.commit(), Error);  // announced bytes are missing
  }
  EXPECT_TRUE(folder.names().empty());
}

TEST(Safetensors, ReplacesAnExistingFileOnlyAtCommit) {
  TemporaryFolder const folder;
  test::write_file(folder.file("x"), "old");
  {
    SafetensorsWriter writer(folder.file("x"), {}, {});
    EXPECT_EQ(test::read_file(folder.file("x")), "old");
  }
  EXPECT_EQ(test::read_file(folder.file("x")), "old");
  SafetensorsWriter writer(folder.file("x"), {}, {});
  writer.commit();
  EXPECT_NE(test::read_file(folder.file("x")), "old");
  EXPECT_EQ(folder.names(), std::vector<std::string>{"x"});
}

TEST(Safetensors, WritesThroughASymbolicLink) {
  TemporaryFolder const folder;
  test::write_file(folder.file("real"), "old");
  std::filesystem::create_symlink(folder.file("real"), folder.file("link"));
  AtomicFile file(folder.file("link"));
  file.write("new");
  file.commit();
  EXPECT_EQ(test::read_file(folder.file("real")), "new");
  EXPECT_TRUE(std::filesystem::is_symlink(folder.file("link")));
}

TEST(Safetensors, WritesToADeviceWithoutReplacingIt) {
  AtomicFile file("/dev/null");
  file.write("anything");
  file.commit();
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/null"));
}

struct Malformed {
  char const* name;
  std::string header;
  std::string data;
  char const* message;
};

class MalformedSafetensors : public testing::TestWithParam<Malformed> {};

TEST_P(MalformedSafetensors, IsRefused) {
  std::string const error = open_error(with_length(GetParam().header, GetParam().data));
  EXPECT_NE(error.find(GetParam().message), std::string::npos) << error;
}

INSTANTIATE_TEST_SUITE_P(
    Headers, MalformedSafetensors,
    testing::Values(
        Malformed{"not_json", "hello", "", "not JSON"}, Malformed{"cut_json", R"({"q":{"dtype")", "", "not JSON"},
        Malformed{"array", "[]", "", "JSON object"}, Malformed{"empty", "", "", "not JSON"},
        Malformed{"no_dtype", R"({"q":{"shape":[1],"data_offsets":[0,4]}})", "abcd", "needs a dtype"},
        Malformed{"not_an_object", R"({"q":3})", "", "needs a dtype"},
        Malformed{"one_offset", "{" + tensor("q", "F32", "1", "0") + "}", "abcd", "two data_offsets"},
        Malformed{"unknown_dtype_empty", "{" + tensor("q", "F7", "0", "0,4") + "}", "abcd", "does not fit"},
        Malformed{"unknown_dtype_beyond_the_end", "{" + tensor("q", "F7", "1", "0,8") + "}", "abcd", "truncated"},
        Malformed{"number_out_of_range", "{" + tensor("q", "F32", "1e400", "0,4") + "}", "abcd", "out of range"},
        Malformed{"negative_extent", "{" + tensor("q", "F32", "-1", "0,4") + "}", "abcd", "integers >= 0"},
        Malformed{"fractional_extent", "{" + tensor("q", "F32", "1.5", "0,4") + "}", "abcd", "integers >= 0"},
        Malformed{"huge_extent", "{" + tensor("q", "F32", "18446744073709551615", "0,4") + "}", "abcd", "integers >= 0"},
        Malformed{"overflowing_shape", "{" + tensor("q", "F32", "4294967296,4294967296,4294967296", "0,4") + "}", "abcd", "does not fit"},
        Malformed{"negative_offset", "{" + tensor("q", "F32", "1", "-4,0") + "}", "abcd", "data_offsets"},
        Malformed{"reversed_offsets", "{" + tensor("q", "F32", "0", "4,0") + "}", "abcd", "claims bytes"},
        Malformed{"beyond_the_end", "{" + tensor("q", "F32", "2", "0,8") + "}", "abcd", "truncated"},
        Malformed{"wrong_size", "{" + tensor("q", "F32", "2", "0,4") + "}", "abcd", "does not fit"},
        Malformed{"overlap", "{" + tensor("k", "F32", "1", "0,4") + "," + tensor("q", "F32", "1", "2,6") + "}", "abcdef", "overlaps"},
        Malformed{"same_bytes", "{" + tensor("k", "F32", "1", "0,4") + "," + tensor("q", "F32", "1", "0,4") + "}", "abcd", "overlaps"},
        Malformed{"hole", "{" + tensor("k", "F32", "1", "0,4") + "," + tensor("q", "F32", "1", "8,12") + "}", "abcdefghijkl",
                  "belong to no tensor"},
        Malformed{"trailing", "{" + tensor("q", "F32", "1", "0,4") + "}", "abcdefgh", "after the last tensor"},
        Malformed{"duplicate", "{" + tensor("q", "F32", "1", "0,4") + "," + tensor("q", "F32", "1", "0,4") + "}", "abcd", "twice"},
        Malformed{"duplicate_field", R"({"q":{"dtype":"F32","dtype":"F16","shape":[1],"data_offsets":[0,4]}})", "abcd", "twice"},
        Malformed{"metadata_number", R"({"__metadata__":{"step":3}})", "", "must be a string"},
        Malformed{"metadata_list", R"({"__metadata__":[]})", "", "object of strings"}),
    [](auto const& entry) { return std::string(entry.param.name); });

TEST(Safetensors, RefusesBadLengths) {
  EXPECT_NE(open_error("").find("8 bytes required"), std::string::npos);
  EXPECT_NE(open_error("1234567").find("8 bytes required"), std::string::npos);
  std::string absurd(8, '\xFF');
  EXPECT_NE(open_error(absurd + "{}").find("claims a header"), std::string::npos);
  std::string const longer_than_the_file{'\x10', 0, 0, 0, 0, 0, 0, 0, '{', '}'};
  EXPECT_NE(open_error(longer_than_the_file).find("claims a header"), std::string::npos);
}

TEST(Safetensors, NamesWhatItHas) {
  TemporaryFolder const folder;
  test::write_file(folder.file("x"), with_length("{" + tensor("value", "F32", "1", "0,4") + "}", "abcd"));
  SafetensorsReader const reader(folder.file("x"));
  try {
    reader.entry("q");
    FAIL();
  } catch (Error const& error) {
    EXPECT_NE(std::string(error.what()).find("the file has value"), std::string::npos) << error.what();
  }
}

TEST(Safetensors, DeepNestingIsRefusedNotFollowed) {
  std::string const deep = "{\"a\":" + std::string(200000, '[') + std::string(200000, ']') + "}";
  EXPECT_NE(open_error(with_length(deep, "")), "");
}

RC_GTEST_PROP(SafetensorsProperty, RandomBytesNeverCrash, (std::string const& header, std::string const& data)) {
  open_error(header + data);
  open_error(with_length(header, data));
}

RC_GTEST_PROP(SafetensorsProperty, DamagedHeadersAreReadConsistentlyOrRefused, ()) {
  std::string text = "{" + tensor("k", "F32", "2,1", "0,8") + "," + tensor("q", "BF16", "4", "8,16") + "}";
  auto const position = *rc::gen::inRange<std::size_t>(0, text.size());
  text[position] = *rc::gen::arbitrary<char>();
  try {
    SafetensorsHeader const header = parse_safetensors_header(text, 16);
    std::uint64_t covered = 0;
    for (TensorEntry const& entry : header.tensors) {
      RC_ASSERT(entry.begin == covered);
      covered = entry.end;
    }
    RC_ASSERT(covered == 16u);
  } catch (Error const& error) {
    RC_ASSERT(error.code() == ErrorCode::io);
  }
}

}  // namespace
}  // namespace vcattn::cli
