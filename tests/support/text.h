#pragma once

#include <string_view>

namespace fccl::test {

inline bool contains(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

}  // namespace fccl::test
