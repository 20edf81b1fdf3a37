#include "tensor_parallel_llm/safetensors.h"

#include <algorithm>
#include <bit>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <utility>

namespace {

static_assert(std::endian::native == std::endian::little,
              "safetensors files are little-endian and are read as they are");

constexpr uint64_t kLengthBytes = 8;
constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the format's own limit

int64_t elementBytes(const std::string& dtype) {
  static const std::map<std::string, int64_t> kBytes = {
      {"F64", 8}, {"I64", 8}, {"U64", 8}, {"F32", 4}, {"I32", 4},  {"U32", 4},     {"F16", 2},    {"BF16", 2},
      {"I16", 2}, {"U16", 2}, {"I8", 1},  {"U8", 1},  {"BOOL", 1}, {"F8_E4M3", 1}, {"F8_E5M2", 1}};
  const auto found = kBytes.find(dtype);
  if (found == kBytes.end()) throw std::runtime_error("has the unknown dtype '" + dtype + "'");
  return found->second;
}

std::string describe(const std::vector<int64_t>& shape) {
  std::string text;
  for (const int64_t extent : shape) text += (text.empty() ? "" : ", ") + std::to_string(extent);
  return "[" + text + "]";
}

// Non-negative integers only: a float or a negative number would be converted silently.
std::vector<int64_t> readIntegers(const nlohmann::json& entry, const char* key) {
  const auto found = entry.find(key);
  const auto fits = [](const nlohmann::json& number) {
    return number.is_number_unsigned() && number.get<uint64_t>() <= std::numeric_limits<int64_t>::max();
  };
  const bool valid = found != entry.end() && found->is_array() && std::all_of(found->begin(), found->end(), fits);
  if (!valid) throw std::runtime_error(std::string("needs '") + key + "', an array of integers that are not negative");
  return found->get<std::vector<int64_t>>();
}

}  // namespace

SafetensorsFile::SafetensorsFile(std::filesystem::path path) : path_(std::move(path)) {
  const auto fail = [this](const std::string& what) { throw std::runtime_error(path_.string() + ": " + what); };

  std::ifstream file(path_, std::ios::binary);
  std::error_code error;
  const uint64_t fileBytes = std::filesystem::file_size(path_, error);
  if (!file || error) fail("cannot be opened");

  uint64_t headerBytes = 0;
  if (!file.read(reinterpret_cast<char*>(&headerBytes), kLengthBytes)) {
    fail("has " + std::to_string(fileBytes) + " bytes; a safetensors file starts with 8 bytes of header length");
  }
  if (headerBytes > fileBytes - kLengthBytes || headerBytes > kMaxHeaderBytes) {
    fail("gives its header " + std::to_string(headerBytes) + " bytes; the file has " +
         std::to_string(fileBytes - kLengthBytes) + " after the length, and a header may have at most " +
         std::to_string(kMaxHeaderBytes));
  }
  std::string header(headerBytes, '\0');
  if (!file.read(header.data(), static_cast<std::streamsize>(headerBytes)))
    fail("cannot be read to the end of its header");
  dataStart_ = static_cast<int64_t>(kLengthBytes + headerBytes);
  const auto dataBytes = static_cast<int64_t>(fileBytes - kLengthBytes - headerBytes);

  const nlohmann::json json = nlohmann::json::parse(header, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) fail("has a header that is not a JSON object");

  std::vector<std::pair<int64_t, int64_t>> places;
  for (const auto& [name, entry] : json.items()) {
    if (name == "__metadata__") continue;
    try {
      const auto dtype = entry.find("dtype");
      if (!entry.is_object() || dtype == entry.end() || !dtype->is_string()) {
        throw std::runtime_error("needs 'dtype', a string");
      }
      Tensor tensor{dtype->get<std::string>(), readIntegers(entry, "shape"), 0, 0};
      const std::vector<int64_t> offsets = readIntegers(entry, "data_offsets");
      if (offsets.size() != 2 || offsets[0] > offsets[1] || offsets[1] > dataBytes) {
        throw std::runtime_error("has data_offsets " + describe(offsets) + "; two rising numbers up to " +
                                 std::to_string(dataBytes) + ", the bytes of data, are expected");
      }
      tensor.begin = offsets[0];
      tensor.end = offsets[1];
      int64_t bytes = elementBytes(tensor.dtype);
      bool fits = true;
      for (const int64_t extent : tensor.shape) fits = !__builtin_mul_overflow(bytes, extent, &bytes) && fits;
      if (!fits || bytes != tensor.end - tensor.begin) {
        throw std::runtime_error("of dtype " + tensor.dtype + " and shape " + describe(tensor.shape) +
                                 " does not take the " + std::to_string(tensor.end - tensor.begin) +
                                 " bytes of its data_offsets");
      }
      if (bytes > 0) places.emplace_back(tensor.begin, tensor.end);
      tensors_.emplace(name, std::move(tensor));
    } catch (const std::runtime_error& reason) {
      fail("tensor '" + name + "' " + reason.what());
    }
  }

  // The format allows neither holes nor overlaps; checking it finds truncated and badly joined files.
  std::sort(places.begin(), places.end());
  int64_t expected = 0;
  for (const auto& [begin, end] : places) {
    if (begin != expected) fail("has a hole or an overlap before data offset " + std::to_string(begin));
    expected = end;
  }
  if (expected != dataBytes) {
    fail("has " + std::to_string(dataBytes) + " bytes of data; its tensors take " + std::to_string(expected));
  }
}

std::vector<Bf16> SafetensorsFile::read(const std::string& name, const std::vector<int64_t>& shape) const {
  const std::string place = path_.string() + ": tensor '" + name + "'";
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) throw std::runtime_error(place + " is missing");
  const Tensor& tensor = found->second;
  if (tensor.dtype != "BF16") throw std::runtime_error(place + " has dtype " + tensor.dtype + "; BF16 is expected");
  if (tensor.shape != shape) {
    throw std::runtime_error(place + " has shape " + describe(tensor.shape) + "; " + describe(shape) + " is expected");
  }
  std::vector<Bf16> elements((tensor.end - tensor.begin) / sizeof(Bf16));
  std::ifstream file(path_, std::ios::binary);
  file.seekg(dataStart_ + tensor.begin);
  if (!file.read(reinterpret_cast<char*>(elements.data()), tensor.end - tensor.begin)) {
    throw std::runtime_error(place + " cannot be read");
  }
  return elements;
}
