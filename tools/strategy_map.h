// Which strategy is chosen over tokens x ranks, as a picture.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace fccl::tools {

struct StrategyMap {
  std::string title;
  std::vector<int> ranks;
  std::vector<long long> tokens;
  std::vector<std::vector<std::string>> choice;  // [ranks][tokens]; empty: none
};

// Asks `choose` for every cell.
StrategyMap makeMap(std::string title, const std::vector<int>& ranks, const std::vector<long long>& tokens,
                    const std::function<std::string(int ranks, long long tokens)>& choose);

// Cells coloured by strategy, a line where two neighbours differ, and a legend.
std::string svgOf(const StrategyMap& map);

}  // namespace fccl::tools
