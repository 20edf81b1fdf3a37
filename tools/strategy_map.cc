#include "tools/strategy_map.h"

#include <fmt/format.h>

#include <set>

namespace fccl::tools {
namespace {

constexpr int kCellWidth = 52;
constexpr int kCellHeight = 36;
constexpr int kLeft = 70;
constexpr int kTop = 44;
constexpr int kLegend = 30;

struct Colour {
  const char* strategy;
  const char* fill;
};
// Told apart by those who do not see red or green, too.
constexpr Colour kColours[] = {{"ONESHOT", "#56b4e9"},        {"TWOSHOT", "#e69f00"},      {"UB", "#009e73"},
                               {"NCCL", "#999999"},           {"MNNVL", "#cc79a7"},        {"MIN_LATENCY", "#f0e442"},
                               {"NCCL_SYMMETRIC", "#d55e00"}, {"LOWPRECISION", "#0072b2"}, {"", "#ffffff"}};

const char* fillOf(const std::string& strategy) {
  for (const Colour& colour : kColours) {
    if (strategy == colour.strategy) return colour.fill;
  }
  return "#dddddd";
}

std::string escaped(const std::string& text) {
  std::string result;
  for (const char c : text) {
    if (c == '<')
      result += "&lt;";
    else if (c == '&')
      result += "&amp;";
    else
      result += c;
  }
  return result;
}

std::string label(int x, int y, const char* anchor, const std::string& text) {
  return fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"{}\">{}</text>\n", x, y, anchor, escaped(text));
}

std::string line(int x1, int y1, int x2, int y2) {
  return fmt::format("<line class=\"border\" x1=\"{}\" y1=\"{}\" x2=\"{}\" y2=\"{}\"/>\n", x1, y1, x2, y2);
}

std::string legend(const StrategyMap& map, int y) {
  std::set<std::string> used;
  for (const auto& row : map.choice) used.insert(row.begin(), row.end());
  std::string svg;
  int x = kLeft;
  for (const std::string& strategy : used) {
    svg += fmt::format("<rect x=\"{}\" y=\"{}\" width=\"14\" height=\"14\" fill=\"{}\" stroke=\"#444\"/>\n", x, y,
                       fillOf(strategy));
    svg += label(x + 20, y + 12, "start", strategy.empty() ? "none in this version" : strategy);
    x += 150;
  }
  return svg;
}

}  // namespace

StrategyMap makeMap(std::string title, const std::vector<int>& ranks, const std::vector<long long>& tokens,
                    const std::function<std::string(int, long long)>& choose) {
  StrategyMap map{std::move(title), ranks, tokens, {}};
  for (const int r : ranks) {
    auto& row = map.choice.emplace_back();
    for (const long long t : tokens) row.push_back(choose(r, t));
  }
  return map;
}

std::string svgOf(const StrategyMap& map) {
  const auto columns = static_cast<int>(map.tokens.size());
  const auto rows = static_cast<int>(map.ranks.size());
  const int width = kLeft + std::max(columns * kCellWidth, 460) + 20;
  const int bottom = kTop + rows * kCellHeight;
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{}\" height=\"{}\" font-family=\"sans-serif\" "
      "font-size=\"12\">\n<style>.border{{stroke:#000;stroke-width:2}}</style>\n<rect width=\"100%\" height=\"100%\" "
      "fill=\"#fff\"/>\n",
      width, bottom + 40 + kLegend);
  svg += label(kLeft, 22, "start", map.title);
  for (int r = 0; r < rows; r++) {
    const auto& row = map.choice[static_cast<size_t>(r)];
    const int y = kTop + r * kCellHeight;
    svg += label(kLeft - 8, y + kCellHeight / 2 + 4, "end", fmt::format("{} ranks", map.ranks[static_cast<size_t>(r)]));
    for (int t = 0; t < columns; t++) {
      const std::string& strategy = row[static_cast<size_t>(t)];
      svg += fmt::format(
          "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"{}\" stroke=\"#fff\"><title>{}</title>"
          "</rect>\n",
          kLeft + t * kCellWidth, y, kCellWidth, kCellHeight, fillOf(strategy), strategy);
    }
  }
  for (int r = 0; r < rows; r++) {
    const auto& row = map.choice[static_cast<size_t>(r)];
    const int y = kTop + r * kCellHeight;
    for (int t = 0; t < columns; t++) {
      const int x = kLeft + t * kCellWidth;
      const std::string& strategy = row[static_cast<size_t>(t)];
      if (t > 0 && row[static_cast<size_t>(t) - 1] != strategy) svg += line(x, y, x, y + kCellHeight);
      if (r > 0 && map.choice[static_cast<size_t>(r) - 1][static_cast<size_t>(t)] != strategy) {
        svg += line(x, y, x + kCellWidth, y);
      }
    }
  }
  for (int t = 0; t < columns; t++) {
    svg += label(kLeft + t * kCellWidth + kCellWidth / 2, bottom + 16, "middle",
                 fmt::format("{}", map.tokens[static_cast<size_t>(t)]));
  }
  svg += label(kLeft - 8, bottom + 16, "end", "tokens");
  return svg + legend(map, bottom + 34) + "</svg>\n";
}

}  // namespace fccl::tools
