// Damaged checkpoints: each must be refused with a sentence that names what is wrong, whatever the damage.
#include "tensor_parallel_llm/safetensors.h"

#include <bit>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

const std::string kGood = R"({"__metadata__": {"format": "pt"},
  "a": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [0, 12]},
  "b": {"dtype": "F32", "shape": [1], "data_offsets": [12, 16]}})";

// 16 bytes of data: the bf16 numbers 1 to 6, then four bytes.
std::string fileOf(const std::string& header, size_t dataBytes = 16) {
  const uint64_t length = header.size();
  std::string file(reinterpret_cast<const char*>(&length), sizeof(length));
  file += header;
  std::string data;
  for (int i = 1; i <= 6; ++i) {
    const uint16_t bits = Bf16(static_cast<float>(i)).bits();
    data.append(reinterpret_cast<const char*>(&bits), sizeof(bits));
  }
  data.resize(dataBytes);
  return file + data;
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  if (at == std::string::npos) throw std::logic_error("the test looks for '" + from + "', which is not there");
  return text.replace(at, from.size(), to);
}

struct Case {
  std::string file;
  std::string expected;  // part of the sentence; empty: the file is good
  std::string tensor = "a";
  std::vector<int64_t> shape = {2, 3};
};

std::vector<Case> cases() {
  const std::string longHeader = std::string("\xff\xff\xff\xff\xff\xff\xff\x7f", 8) + kGood;
  return {
      {fileOf(kGood), ""},
      {"", "has 0 bytes"},
      {"1234567", "has 7 bytes"},
      {longHeader, "gives its header 9223372036854775807 bytes"},
      {std::string(8, '\xff') + kGood, "gives its header 18446744073709551615 bytes"},
      {fileOf(kGood).substr(0, 40), "gives its header"},
      {fileOf("{\"a\": "), "header that is not a JSON object"},
      {fileOf("[1, 2]"), "header that is not a JSON object"},
      {fileOf(""), "header that is not a JSON object"},
      {fileOf(std::string(100000, '[')), "header that is not a JSON object"},
      {fileOf(replaced(kGood, "{\"dtype\": \"F32\", \"shape\": [1], \"data_offsets\": [12, 16]}", "7")),
       "tensor 'b' needs 'dtype'"},
      {fileOf(replaced(kGood, "\"F32\"", "32")), "tensor 'b' needs 'dtype'"},
      {fileOf(replaced(kGood, "F32", "F33")), "unknown dtype 'F33'"},
      {fileOf(replaced(kGood, "[2, 3]", "[2, -3]")), "tensor 'a' needs 'shape'"},
      {fileOf(replaced(kGood, "[2, 3]", "[2.0, 3]")), "tensor 'a' needs 'shape'"},
      {fileOf(replaced(kGood, "[2, 3]", "\"2, 3\"")), "tensor 'a' needs 'shape'"},
      {fileOf(replaced(kGood, "[2, 3]", "[18446744073709551615, 3]")), "tensor 'a' needs 'shape'"},
      {fileOf(replaced(kGood, "[2, 3]", "[4611686018427387904, 4, 3]")), "does not take the 12 bytes"},
      {fileOf(replaced(kGood, "[2, 3]", "[2, 4]")), "does not take the 12 bytes"},
      {fileOf(replaced(kGood, "[12, 16]", "[12, 20]")), "tensor 'b' has data_offsets [12, 20]"},
      {fileOf(replaced(kGood, "[12, 16]", "[16, 12]")), "tensor 'b' has data_offsets [16, 12]"},
      {fileOf(replaced(kGood, "[12, 16]", "[12]")), "tensor 'b' has data_offsets [12]"},
      {fileOf(replaced(kGood, "[12, 16]", "[12, 9223372036854775807]")), "tensor 'b' has data_offsets"},
      {fileOf(replaced(kGood, ", \"data_offsets\": [12, 16]", "")), "tensor 'b' needs 'data_offsets'"},
      {fileOf(replaced(kGood, "[12, 16]", "[8, 12]")), "hole or an overlap before data offset 8"},
      {fileOf(kGood, 15), "tensor 'b' has data_offsets [12, 16]"},
      {fileOf(kGood, 17), "has 17 bytes of data; its tensors take 16"},
      {fileOf(kGood), "tensor 'c' is missing", "c"},
      {fileOf(kGood), "tensor 'b' has dtype F32; BF16 is expected", "b", {1}},
      {fileOf(kGood), "has shape [2, 3]; [3, 2] is expected", "a", {3, 2}},
  };
}

// What is wrong with the case, or nothing.
std::string judge(const Case& tried, const std::filesystem::path& path) {
  std::ofstream(path, std::ios::binary) << tried.file;
  try {
    const std::vector<Bf16> read = SafetensorsFile(path).read(tried.tensor, tried.shape);
    if (!tried.expected.empty()) return "was read";
    return read.size() == 6 && static_cast<float>(read[0]) == 1 && static_cast<float>(read[5]) == 6
               ? ""
               : "has other values";
  } catch (const std::runtime_error& error) {
    const bool expected =
        !tried.expected.empty() && std::string(error.what()).find(tried.expected) != std::string::npos;
    return expected ? "" : std::string("says '") + error.what() + "'";
  }
}

}  // namespace

int main() {
  std::string folder = (std::filesystem::temp_directory_path() / "safetensors_test.XXXXXX").string();
  if (mkdtemp(folder.data()) == nullptr) {
    std::perror("mkdtemp");
    return 1;
  }
  int failures = 0;
  for (const Case& tried : cases()) {
    const std::string wrong = judge(tried, std::filesystem::path(folder) / "model.safetensors");
    if (wrong.empty()) continue;
    ++failures;
    std::printf("expected '%s': the file %s\n", tried.expected.c_str(), wrong.c_str());
  }
  std::filesystem::remove_all(folder);
  std::printf("%zu files, %d failures\n", cases().size(), failures);
  return failures == 0 ? 0 : 1;
}
