// Reads a safetensors file: 8 bytes of header length, a JSON header that names dtype, shape and place of each tensor,
// data.
#ifndef EXAMPLES_TENSOR_PARALLEL_LLM_SAFETENSORS_H_
#define EXAMPLES_TENSOR_PARALLEL_LLM_SAFETENSORS_H_

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "common/bf16.h"

class SafetensorsFile {
 public:
  // Reads and checks the header. Nothing in the file is trusted: std::runtime_error names the file and what is wrong.
  explicit SafetensorsFile(std::filesystem::path path);

  // The elements of a bf16 tensor, row by row. The shape must be the one that the caller expects.
  std::vector<Bf16> read(const std::string& name, const std::vector<int64_t>& shape) const;

 private:
  struct Tensor {
    std::string dtype;
    std::vector<int64_t> shape;
    int64_t begin = 0;  // bytes from the start of the data
    int64_t end = 0;
  };

  std::filesystem::path path_;
  int64_t dataStart_ = 0;
  std::map<std::string, Tensor> tensors_;
};

#endif  // EXAMPLES_TENSOR_PARALLEL_LLM_SAFETENSORS_H_
