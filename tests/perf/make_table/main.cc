// fccl-make-table: fccl-perf's JSON in, a table for tuner/tables/ out.
//   fccl-perf --device cuda --strategy oneshot ... --json a.json    for each strategy, rank count and pattern
//   fccl-make-table --generation 90 --source "2x H200, 2026-11-30" -o tuner/tables/fccl_sm90.csv a.json b.json
#include <CLI/CLI.hpp>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/perf/table_maker.h"

int main(int argc, char** argv) {
  CLI::App app("Makes a static table of the tuner from reports of fccl-perf.");
  fccl::perf::TableOptions options;
  std::vector<std::string> files;
  std::string output;
  app.add_option("--generation", options.generation, "compute capability, 90 for 9.0")->required();
  app.add_option("--source", options.source, "where the figures are from")->required();
  app.add_option("--tie", options.tie, "times within this share of the least are equal")->capture_default_str();
  app.add_option("-o,--output", output, "the table")->required();
  app.add_option("reports", files, "JSON of fccl-perf")->required()->check(CLI::ExistingFile);
  CLI11_PARSE(app, argc, argv);
  try {
    std::vector<std::pair<std::string, nlohmann::json>> reports;
    for (const std::string& file : files) reports.emplace_back(file, nlohmann::json::parse(std::ifstream(file)));
    const fccl::perf::MadeTable made = fccl::perf::makeTable(reports, options);
    for (const std::string& note : made.notes) std::fprintf(stderr, "%s\n", note.c_str());
    if (made.cells == 0) {
      std::fprintf(stderr, "No cell has two strategies to choose between; nothing is written.\n");
      return 1;
    }
    std::ofstream table(output);
    table << made.csv;
    if (!table.flush()) {
      std::fprintf(stderr, "%s cannot be written.\n", output.c_str());
      return 1;
    }
    std::printf("%d cells in %s\n", made.cells, output.c_str());
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
