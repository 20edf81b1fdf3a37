#include "tests/support/fused_case.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <mutex>
#include <stdexcept>

#include "tests/support/catch.h"
#include "tests/support/parallel_rows.h"
#include "tests/support/suite_device.h"

namespace fccl::test {

const PatternTraits& traits(fcclFusionPattern_t pattern) {
  static const PatternTraits table[] = {
      {false, false, false, Quant::kNone, fcclPatternAllReduce},
      {false, true, true, Quant::kNone, fcclPatternRmsNorm},
      {true, true, true, Quant::kNone, fcclPatternResidualRmsNorm},
      {true, true, false, Quant::kFp8, fcclPatternResidualRmsNormOutQuantFp8},
      {true, true, true, Quant::kFp8, fcclPatternResidualRmsNormOutQuantFp8},
      {true, true, false, Quant::kNvfp4, fcclPatternResidualRmsNormOutQuantNvfp4},
      {true, true, true, Quant::kNvfp4, fcclPatternResidualRmsNormOutQuantNvfp4},
  };
  return table[pattern];
}

const std::vector<fcclFusionPattern_t>& allPatterns() {
  static const std::vector<fcclFusionPattern_t> patterns = {
      fcclPatternAllReduce,
      fcclPatternRmsNorm,
      fcclPatternResidualRmsNorm,
      fcclPatternResidualRmsNormQuantFp8,
      fcclPatternResidualRmsNormOutQuantFp8,
      fcclPatternResidualRmsNormQuantNvfp4,
      fcclPatternResidualRmsNormOutQuantNvfp4,
  };
  return patterns;
}

std::string FusedCase::describe() const {
  return fmt::format("{} {} {}x{} {} weight {}+{} eps {} reducedOut {} layout {} data {} seed {}{} in place {}{}{}",
                     patternName(pattern), dtypeName(dtype), tokens, hidden, strategyName(strategy),
                     dtypeName(weightType()), weightBias, eps, reducedOut, static_cast<int>(layout),
                     static_cast<int>(data), seed, sharded ? " sharded" : "", residualInPlace ? "residual " : "",
                     reducedInPlace ? "reduced " : "", normInPlace ? "norm" : "");
}

FusedProblem::FusedProblem(const FusedCase& asked, int ranks) : asked_(asked) {
  const size_t bytes = asked.count() * dtypeBytes(asked.dtype);
  const auto hidden = static_cast<size_t>(asked.hidden);
  inputs.assign(static_cast<size_t>(ranks), Bytes(bytes));
  residual.resize(bytes);
  forRowPieces(asked.tokens, asked.hidden, 8, [&](int64_t first, int64_t last) {
    for (auto row = static_cast<size_t>(first); row < static_cast<size_t>(last); ++row) {
      for (int rank = 0; rank < ranks; ++rank) {
        Bytes& input = inputs[static_cast<size_t>(rank)];
        for (size_t column = 0; column < hidden; ++column) {
          store(asked.dtype, input.data(), row * hidden + column,
                inputValue(asked.data, asked.dtype, asked.seed, rank, ranks, row, column));
        }
      }
      for (size_t column = 0; column < hidden; ++column) {
        store(asked.dtype, residual.data(), row * hidden + column, residualValue(row, column));
      }
    }
  });
  const fcclDataType_t weightType = asked.weightType();
  weight.resize(hidden * dtypeBytes(weightType));
  for (size_t i = 0; i < hidden; ++i) {
    const double offset = 0.5 * uniform(asked.seed + 200, i);
    const double sign = hash(asked.seed + 201, i) % 7 == 0 ? -1 : 1;
    store(weightType, weight.data(), i, asked.weightBias == 0 ? sign * (1 + offset) : offset);
  }
}

double FusedProblem::residualValue(size_t row, size_t column) const {
  if (asked_.data == DataKind::kSpecial) {
    if (row % 11 == 0 || row % 11 == 5 || row % 11 == 6) return 0;
    if (row % 11 == 1) return -0.0;
    if (row % 11 == 10) {  // cancels the sum
      const size_t at = (row * static_cast<size_t>(asked_.hidden) + column) * dtypeBytes(asked_.dtype);
      std::vector<const void*> elements;
      for (const Bytes& input : inputs) elements.push_back(&input[at]);
      return -load(asked_.dtype, referenceAllReduce(asked_.dtype, fcclSum, elements, 1).data(), 0);
    }
  }
  return inputValue(DataKind::kPlain, asked_.dtype, asked_.seed + 100, 1000, 1, row, column);
}

void FusedProblem::expect() {
  if (expected_) return;
  const size_t rowBytes = static_cast<size_t>(asked_.hidden) * dtypeBytes(asked_.dtype);
  reduced_.resize(inputs[0].size());
  residualOut_.resize(inputs[0].size());
  forRowPieces(asked_.tokens, asked_.hidden, 8, [&](int64_t first, int64_t last) {
    const size_t at = static_cast<size_t>(first) * rowBytes;
    const auto count = static_cast<size_t>((last - first) * asked_.hidden);
    std::vector<const void*> rows;
    for (const Bytes& input : inputs) rows.push_back(input.data() + at);
    const Bytes reduced = referenceAllReduce(asked_.dtype, fcclSum, rows, count);
    const Bytes sum = referenceResidual(asked_.dtype, reduced.data(), residual.data() + at, count);
    std::copy(reduced.begin(), reduced.end(), reduced_.data() + at);
    std::copy(sum.begin(), sum.end(), residualOut_.data() + at);
  });
  expected_ = true;
}

std::string FusedProblem::check(fcclFusionPattern_t pattern, const FusedOutputs& outputs, const Bytes& norm) {
  expect();
  if (traits(pattern).quant == Quant::kNvfp4 &&
      outputs.scales.size() != scaleBytes(asked_.tokens, asked_.hidden, asked_.layout)) {
    return "scaleOut has another size";
  }
  std::mutex mutex;
  std::string wrong;
  // 128 rows have their own part of scaleOut in every layout.
  forRowPieces(asked_.tokens, asked_.hidden, 128, [&](int64_t first, int64_t last) {
    const std::string here = checkRows(pattern, outputs, norm, first, last);
    if (here.empty()) return;
    const std::lock_guard lock(mutex);
    wrong = fmt::format("rows {} to {}: {}", first, last - 1, here);
  });
  return wrong;
}

std::string FusedProblem::checkRows(fcclFusionPattern_t pattern, const FusedOutputs& outputs, const Bytes& norm,
                                    int64_t first, int64_t last) const {
  const PatternTraits& has = traits(pattern);
  const fcclDataType_t dtype = asked_.dtype;
  const size_t rowBytes = static_cast<size_t>(asked_.hidden) * dtypeBytes(dtype);
  const size_t at = static_cast<size_t>(first) * rowBytes;
  const auto firstElement = static_cast<size_t>(first * asked_.hidden);
  const auto count = static_cast<size_t>((last - first) * asked_.hidden);
  if (!outputs.reduced.empty()) {
    const std::string wrong = compareElements(dtype, reduced_.data() + at, outputs.reduced.data() + at, count, true);
    if (!wrong.empty()) return "reducedOut: " + wrong;
  }
  if (has.residual) {
    const std::string wrong =
        compareElements(dtype, residualOut_.data() + at, outputs.residual.data() + at, count, true);
    if (!wrong.empty()) return "residualOut: " + wrong;
  }
  if (!has.norm) return "";
  const Bytes& r = has.residual ? residualOut_ : reduced_;
  for (int64_t row = first; has.normOut && row < last; ++row) {
    const size_t rowAt = static_cast<size_t>(row) * rowBytes;
    const std::vector<double> expected = referenceNorm(dtype, r.data() + rowAt, weight.data(), asked_.weightType(),
                                                       asked_.hidden, asked_.weightBias, asked_.eps);
    const std::string wrong = compareNorm(dtype, expected, outputs.norm.data() + rowAt);
    if (!wrong.empty()) return fmt::format("normOut row {}: {}", row, wrong);
  }
  const uint8_t* const n = norm.data() + at;
  if (has.quant == Quant::kFp8) {
    const Bytes codes = referenceFp8(dtype, n, count, asked_.fp8DequantScale);
    for (size_t i = 0; i < count; ++i) {
      const uint8_t got = outputs.quant[firstElement + i];
      if (codes[i] == got) continue;
      return fmt::format("quantOut element {}: n {}, expected code {:02x}, got {:02x}", i, load(dtype, n, i), codes[i],
                         got);
    }
  }
  if (has.quant == Quant::kNvfp4) {
    const Nvfp4 expected =
        referenceNvfp4(dtype, n, last - first, asked_.hidden, asked_.nvfp4GlobalScale, asked_.layout);
    const size_t scaleAt = scaleBytes(first, asked_.hidden, asked_.layout);
    for (size_t i = 0; i < expected.scales.size(); ++i) {
      if (expected.scales[i] == outputs.scales[scaleAt + i]) continue;
      return fmt::format("scaleOut byte {} of {}: expected {:02x}, got {:02x}", i, expected.scales.size(),
                         expected.scales[i], outputs.scales[scaleAt + i]);
    }
    for (size_t i = 0; i < count; ++i) {
      const int want = expected.codes[i / 2] >> (i % 2 * 4) & 15;
      const int got = outputs.quant[(firstElement + i) / 2] >> (i % 2 * 4) & 15;
      if (want == got || expected.undefinedCode[i]) continue;
      return fmt::format("quantOut element {}: n {}, expected code {:x}, got {:x}", i, load(dtype, n, i), want, got);
    }
  }
  return "";
}

namespace {

// A finite value of e4m3, zero without a sign: any of them.
double e4m3Value(uint64_t h) {
  const int magnitude = static_cast<int>(h % 0x7f);
  const int exponent = magnitude >> 3;
  const double value = exponent == 0 ? std::ldexp(magnitude, -9) : std::ldexp(8 + (magnitude & 7), exponent - 10);
  return magnitude != 0 && (h >> 20) % 2 == 1 ? -value : value;
}

double normal(uint64_t seed, uint64_t index) {
  const double a = (uniform(seed, 2 * index) + 1) / 2;
  const double b = uniform(seed, 2 * index + 1);
  return std::sqrt(-2 * std::log(1 - a)) * std::cos(3.14159265358979323846 * b);
}

}  // namespace

void holdInFp8(FusedProblem& problem, bool integers, int powerOfTwo) {
  const auto ranks = static_cast<uint64_t>(problem.ranks());
  const uint64_t seed = problem.asked().seed;
  for (size_t i = 0; i < problem.asked().count(); ++i) {
    const uint64_t holder = hash(seed + 300, i) % ranks;
    const double held = std::ldexp(e4m3Value(hash(seed + 301, i)), powerOfTwo);
    for (uint64_t r = 0; r < ranks; ++r) {
      const double value = integers ? static_cast<double>(hash(seed + r, i) % 3) - 1 : r == holder ? held : 0;
      store(problem.asked().dtype, problem.inputs[r].data(), i, value);
    }
  }
}

void makeNormal(FusedProblem& problem, uint64_t seed) {
  for (int r = 0; r < problem.ranks(); ++r) {
    for (size_t i = 0; i < problem.asked().count(); ++i) {
      store(problem.asked().dtype, problem.inputs[static_cast<size_t>(r)].data(), i,
            normal(seed + static_cast<uint64_t>(r), i));
    }
  }
}

FusedBuffers::Input FusedBuffers::makeInput(const Bytes& bytes, GuardedBuffer::Guard guard) {
  Input input{GuardedBuffer(bytes.size(), guard), bytes};
  if (!bytes.empty()) std::memcpy(input.buffer.data(), bytes.data(), bytes.size());
  return input;
}

Bytes FusedBuffers::contents(const void* data, size_t bytes) {
  if (data == nullptr) return {};
  const auto* first = static_cast<const uint8_t*>(data);
  return Bytes(first, first + bytes);
}

FusedBuffers::FusedBuffers(const FusedProblem& problem, int rank, fcclFusionPattern_t pattern)
    : asked_(problem.asked()) {
  const FusedCase& asked = asked_;
  const PatternTraits& has = traits(pattern);
  const auto guard = asked.guard;
  const size_t bytes = asked.count() * dtypeBytes(asked.dtype);
  args.pattern = pattern;
  args.dtype = asked.dtype;
  args.tokens = asked.tokens;
  args.hidden = asked.hidden;
  args.strategy = asked.strategy;
  input_ = makeInput(problem.inputs[static_cast<size_t>(rank)], guard);
  args.input = input_.buffer.data();
  if (has.residual) {
    int64_t first = 0;
    int64_t count = asked.tokens;
    // May be on a rank's thread, where Catch must not be.
    if (asked.sharded && fcclResidualShard(asked.tokens, problem.ranks(), rank, &first, &count) != fcclSuccess) {
      throw std::runtime_error(fcclGetLastError(nullptr));
    }
    args.residualSharded = asked.sharded ? 1 : 0;
    const auto rowBytes = static_cast<int64_t>(asked.hidden * static_cast<int64_t>(dtypeBytes(asked.dtype)));
    residualBytes_ = static_cast<size_t>(count * rowBytes);
    const auto from = problem.residual.begin() + first * rowBytes;
    if (count != 0) {
      residual_ = makeInput(Bytes(from, from + count * rowBytes), guard);
      args.residual = residual_.buffer.data();
      if (!asked.residualInPlace) residualOut_ = GuardedBuffer(residualBytes_, guard);
      residual_.overwritten = asked.residualInPlace;
      args.residualOut = asked.residualInPlace ? residual_.buffer.data() : residualOut_.data();
    }
  }
  if (has.norm) {
    weight_ = makeInput(problem.weight, guard);
    args.weight = weight_.buffer.data();
    args.weightDtype = asked.fp32Weight ? static_cast<int>(fcclFloat32) : FCCL_DTYPE_SAME;
    args.weightBias = asked.weightBias;
    args.eps = asked.eps;
  }
  if (has.normOut) {
    if (!asked.normInPlace) normOut_ = GuardedBuffer(bytes, guard);
    args.normOut = asked.normInPlace ? input_.buffer.data() : normOut_.data();
    input_.overwritten = input_.overwritten || asked.normInPlace;
  }
  if (!has.norm || asked.reducedOut || asked.reducedInPlace) {
    if (!asked.reducedInPlace) reducedOut_ = GuardedBuffer(bytes, guard);
    args.reducedOut = asked.reducedInPlace ? input_.buffer.data() : reducedOut_.data();
    input_.overwritten = input_.overwritten || asked.reducedInPlace;
  }
  if (has.quant != Quant::kNone) {
    const bool fp8 = has.quant == Quant::kFp8;
    const float scale = fp8 ? asked.fp8DequantScale : asked.nvfp4GlobalScale;
    Bytes scaleBytesOf(sizeof(float));
    std::memcpy(scaleBytesOf.data(), &scale, sizeof(float));
    Input& holder = fp8 ? fp8Scale_ : globalScale_;
    holder = makeInput(scaleBytesOf, guard);
    (fp8 ? args.fp8DequantScale : args.nvfp4GlobalScale) = holder.buffer.as<float>();
    quantOut_ = GuardedBuffer(fp8 ? asked.count() : asked.count() / 2, guard);
    args.quantOut = quantOut_.data();
    if (!fp8) {
      scaleOut_ = GuardedBuffer(scaleBytes(asked.tokens, asked.hidden, asked.layout), guard);
      args.scaleOut = scaleOut_.data();
      args.scaleLayout = asked.layout;
    }
  }
}

FusedOutputs FusedBuffers::outputs() const {
  const size_t bytes = asked_.count() * dtypeBytes(asked_.dtype);
  FusedOutputs all;
  all.reduced = contents(args.reducedOut, bytes);
  all.residual = contents(args.residualOut, residualBytes_);
  all.norm = contents(args.normOut, bytes);
  all.quant = contents(args.quantOut, quantOut_.size());
  all.scales = contents(args.scaleOut, scaleOut_.size());
  return all;
}

std::string FusedBuffers::intact() const {
  const std::pair<const char*, const Input*> inputs[] = {{"input", &input_},
                                                         {"residual", &residual_},
                                                         {"weight", &weight_},
                                                         {"fp8DequantScale", &fp8Scale_},
                                                         {"nvfp4GlobalScale", &globalScale_}};
  for (const auto& [name, input] : inputs) {
    if (!input->buffer.canaryWhole()) return fmt::format("canary beside {} overwritten", name);
    const size_t bytes = input->original.size();
    if (!input->overwritten && bytes != 0 && std::memcmp(input->buffer.data(), input->original.data(), bytes) != 0) {
      return fmt::format("{} was written to", name);
    }
  }
  const std::pair<const char*, const GuardedBuffer*> outputs[] = {{"reducedOut", &reducedOut_},
                                                                  {"residualOut", &residualOut_},
                                                                  {"normOut", &normOut_},
                                                                  {"quantOut", &quantOut_},
                                                                  {"scaleOut", &scaleOut_}};
  for (const auto& [name, output] : outputs) {
    if (!output->canaryWhole()) return fmt::format("canary beside {} overwritten", name);
  }
  return "";
}

bool FusedBuffers::untouched() const {
  return reducedOut_.untouched() && residualOut_.untouched() && normOut_.untouched() && quantOut_.untouched() &&
         scaleOut_.untouched();
}

namespace {

// One call on all ranks; the ranks must hold the same bytes. Returns rank 0's.
FusedOutputs callOnAllRanks(RankGroup& group, const FusedProblem& problem, fcclFusionPattern_t pattern,
                            const FusedCall& call) {
  std::vector<std::unique_ptr<FusedBuffers>> buffers;
  for (int rank = 0; rank < group.ranks(); ++rank) {
    buffers.push_back(std::make_unique<FusedBuffers>(problem, rank, pattern));
  }
  group.run(problem.asked().describe(), [&](Rank& rank) {
    FusedBuffers& own = *buffers[static_cast<size_t>(rank.rank)];
    rank.ok((call ? call : suiteDevice().call)(rank, own), patternName(pattern));
    const std::string damage = own.intact();
    rank.expect(damage.empty(), damage);
  });
  FusedOutputs first = buffers[0]->outputs();
  for (int rank = 1; rank < group.ranks(); ++rank) {
    FusedOutputs other = buffers[static_cast<size_t>(rank)]->outputs();
    if (problem.asked().sharded) {
      first.residual.insert(first.residual.end(), other.residual.begin(), other.residual.end());
      other.residual = first.residual;
    }
    if (other == first) continue;
    const char* which = other.reduced != first.reduced     ? "reducedOut"
                        : other.residual != first.residual ? "residualOut"
                        : other.norm != first.norm         ? "normOut"
                        : other.quant != first.quant       ? "quantOut"
                                                           : "scaleOut";
    FAIL(patternName(pattern) << ": " << which << " of rank " << rank << " is not that of rank 0");
  }
  return first;
}

}  // namespace

fcclResult_t callOnHost(Rank& rank, FusedBuffers& own) { return fcclAllReduceFused(&own.args, rank.comm, nullptr); }

FusedOutputs callFused(RankGroup& group, const FusedProblem& problem, const FusedCall& call) {
  return callOnAllRanks(group, problem, problem.asked().pattern, call);
}

FusedOutputs runFused(RankGroup& group, FusedProblem& problem, const FusedCall& call) {
  const fcclFusionPattern_t pattern = problem.asked().pattern;
  INFO(group.ranks() << " ranks: " << problem.asked().describe());
  Bytes norm;
  if (const fcclFusionPattern_t sibling = traits(pattern).withNormOut; sibling != pattern) {
    const FusedOutputs full = callOnAllRanks(group, problem, sibling, call);
    const std::string wrong = problem.check(sibling, full, full.norm);
    if (!wrong.empty()) FAIL(patternName(sibling) << ": " << wrong);
    norm = full.norm;
  }
  FusedOutputs outputs = callOnAllRanks(group, problem, pattern, call);
  const std::string wrong = problem.check(pattern, outputs, traits(pattern).normOut ? outputs.norm : norm);
  if (!wrong.empty()) FAIL(patternName(pattern) << ": " << wrong);
  if (outputs.norm.empty()) outputs.norm = norm;
  return outputs;
}

FusedOutputs runFused(RankGroup& group, const FusedCase& asked, const FusedCall& call) {
  FusedProblem problem(asked, group.ranks());
  return runFused(group, problem, call);
}

}  // namespace fccl::test
