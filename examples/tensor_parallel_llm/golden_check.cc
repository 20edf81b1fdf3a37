#include "tensor_parallel_llm/golden_check.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <span>
#include <stdexcept>
#include <type_traits>

#include "common/mpi_program.h"
#include "tensor_parallel_llm/reference.h"

namespace {

// Where the float64 model itself is this close to another byte, rounding may choose the other.
constexpr double kDecisiveMargin = 0.25;
// The file gives margins with five decimals, and the cosines of its fp32 angles may be an ulp off those of this
// machine.
constexpr double kMarginTolerance = 2e-5;

// How far a logit may be from the float64 one. Each of the 2 x layers blocks of the model rounds to T, by at most u
// relative to what it rounds, each rank's partial sum, their sum, the residual stream and the norm: ranks + 3 roundings
// on the way of one element. Inside a block fp32 sums of hidden and FFN terms round too, which shows only where T is
// fp32. Independent errors add in squares, and the head passes the relative error of its input on to the logits, whose
// scale is the largest of the position. kGain is what the layers may amplify; measured errors are 0.1 to 0.6 of the
// tolerance.
template <class T>
double logitTolerance(const ModelConfig& config, int ranks, double largestLogit) {
  constexpr double kFloatRoundoff = 0x1p-24;
  constexpr double kRoundoff = std::is_same_v<T, float> ? kFloatRoundoff : 0x1p-9;
  constexpr double kGain = 4;
  const double exchanged = static_cast<double>(ranks + 3) * kRoundoff * kRoundoff;
  const double inside = static_cast<double>(config.hidden + config.ffn) * kFloatRoundoff * kFloatRoundoff;
  return kGain * std::sqrt(static_cast<double>(2 * config.layers) * (exchanged + inside)) * largestLogit;
}

template <class Logit>
size_t best(std::span<const Logit> logits) {
  return static_cast<size_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

double margin(std::span<const double> logits) {
  std::vector<double> sorted(logits.begin(), logits.end());
  std::nth_element(sorted.begin(), sorted.begin() + 1, sorted.end(), std::greater<>());
  return sorted[0] - sorted[1];
}

// How the pass along the golden text compares with the float64 reference.
struct Comparison {
  bool referenceIsGolden = true;  // the reference chooses the golden bytes
  double worstMargin = 0;         // reference's margin against the file's
  int64_t decided = 0;            // steps of a margin that rounding cannot overturn
  int64_t decidedRight = 0;       // those where the parallel pass chooses the golden byte
  double worstLogit = 0;
  double worstShare = 0;  // of the tolerance
};

template <class T>
Comparison compare(const ModelConfig& config, int ranks, const GoldenCase& golden, std::span<const float> logits,
                   std::span<const double> reference) {
  Comparison result;
  const auto vocab = static_cast<size_t>(config.vocab);
  for (size_t step = 0; step < golden.margins.size(); ++step) {
    const auto exact = reference.subspan(step * vocab, vocab);
    const auto computed = logits.subspan(step * vocab, vocab);
    const auto byte = static_cast<unsigned char>(golden.text[golden.prompt.size() + step]);
    result.referenceIsGolden = result.referenceIsGolden && best(exact) == byte;
    result.worstMargin = std::max(result.worstMargin, std::abs(margin(exact) - golden.margins[step]));
    if (golden.margins[step] >= kDecisiveMargin) {
      ++result.decided;
      if (best(computed) == byte) ++result.decidedRight;
    }
    double difference = 0;
    double largest = 0;
    bool finite = true;
    for (size_t i = 0; i < vocab; ++i) {
      finite = finite && std::isfinite(computed[i]);
      difference = std::max(difference, std::abs(static_cast<double>(computed[i]) - exact[i]));
      largest = std::max(largest, std::abs(exact[i]));
    }
    if (!finite) difference = std::numeric_limits<double>::infinity();  // std::max drops NaN
    result.worstLogit = std::max(result.worstLogit, difference);
    result.worstShare = std::max(result.worstShare, difference / logitTolerance<T>(config, ranks, largest));
  }
  return result;
}

}  // namespace

std::vector<GoldenCase> loadGolden(const std::filesystem::path& path, const ModelConfig& config) {
  const auto fail = [&path](const std::string& what) { throw std::runtime_error(path.string() + ": " + what); };
  std::ifstream file(path);
  if (!file) fail("cannot be opened");
  const nlohmann::json json = nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
  if (!json.is_array() || json.empty()) fail("is not a JSON array of cases");
  std::vector<GoldenCase> cases;
  for (const auto& entry : json) {
    try {
      cases.push_back({entry.at("prompt"), entry.at("greedy"), entry.at("margins")});
    } catch (const nlohmann::json::exception& reason) {
      fail(std::string("a case needs 'prompt', 'greedy' and 'margins': ") + reason.what());
    }
    const GoldenCase& golden = cases.back();
    if (golden.prompt.empty() || !golden.text.starts_with(golden.prompt) || golden.margins.empty() ||
        golden.text.size() != golden.prompt.size() + golden.margins.size() ||
        golden.text.size() > static_cast<size_t>(config.context)) {
      fail("the case '" + golden.prompt + "' needs a prompt, a text that begins with it and fits in the context of " +
           std::to_string(config.context) + " bytes, and a margin for each byte after it");
    }
  }
  return cases;
}

template <class T>
bool checkGolden(Decoder<T>& decoder, const ModelShard* whole, const std::vector<GoldenCase>& cases) {
  const ModelConfig& config = decoder.config();
  const auto vocab = static_cast<size_t>(config.vocab);
  if (whole != nullptr) {
    std::printf("  %-32s %12s %8s %16s %26s %14s\n", "prompt", "text follows", "needed", "decided steps",
                "worst logit (of tolerance)", "golden margins");
  }
  bool allHold = true;
  for (const GoldenCase& golden : cases) {
    const size_t prompt = golden.prompt.size();
    const size_t steps = golden.margins.size();
    const std::string_view text = golden.text;

    // Greedy, byte by byte, as a user runs it.
    std::string own = golden.prompt;
    decoder.reset();
    while (own.size() < text.size()) own.push_back(static_cast<char>(best(decoder.next(own))));
    const auto followed =
        std::mismatch(own.begin(), own.end(), text.begin()).first - own.begin() - static_cast<int64_t>(prompt);
    const auto needed =
        std::find_if(golden.margins.begin(), golden.margins.end(), [](double m) { return m < kDecisiveMargin; }) -
        golden.margins.begin();

    // Along the golden text, byte by byte and then at one stroke: FCCL promises the same bits for any number of tokens.
    std::vector<float> stepwise;
    decoder.reset();
    for (size_t step = 0; step < steps; ++step) {
      const auto logits = decoder.next(text.substr(0, prompt + step));
      stepwise.insert(stepwise.end(), logits.begin(), logits.end());
    }
    decoder.reset();
    const auto atOnce = decoder.forward(text.substr(0, text.size() - 1)).last(steps * vocab);
    const bool anyBatch = std::memcmp(atOnce.data(), stepwise.data(), stepwise.size() * sizeof(float)) == 0;
    const bool sameOnRanks = sameOnAllRanks(stepwise.data(), stepwise.size() * sizeof(float));

    int holds = anyBatch && sameOnRanks && followed >= needed;
    if (!anyBatch) {
      std::fprintf(stderr, "'%s': one token at a time and all at once give other bits\n", golden.prompt.c_str());
    }
    if (whole != nullptr) {
      const std::vector<double> reference = referenceLogits(*whole, text.substr(0, text.size() - 1));
      const Comparison found =
          compare<T>(config, decoder.ranks(), golden, stepwise, std::span(reference).last(steps * vocab));
      const bool goldenHolds = found.referenceIsGolden && found.worstMargin <= kMarginTolerance;
      holds = holds && goldenHolds && found.decidedRight == found.decided && found.worstShare <= 1;
      std::printf("  %-32s %8td/%-3zu %8td %12td/%-3td %16.2g (%4.0f %%) %8.1g off  %s\n",
                  ('"' + golden.prompt + '"').c_str(), followed, steps, needed, found.decidedRight, found.decided,
                  found.worstLogit, 100 * found.worstShare, found.worstMargin, holds ? "ok" : "FAILED");
      if (!goldenHolds) std::printf("  the float64 reference itself does not give the golden text and margins\n");
      if (!sameOnRanks) std::printf("  the ranks have different logits\n");
    }
    int holdsEverywhere = 0;
    MPI_Allreduce(&holds, &holdsEverywhere, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    allHold = allHold && holdsEverywhere == 1;
  }
  return allHold;
}

template bool checkGolden(Decoder<Bf16>&, const ModelShard*, const std::vector<GoldenCase>&);
template bool checkGolden(Decoder<float>&, const ModelShard*, const std::vector<GoldenCase>&);
