#include "tests/support/fused_case.h"

#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <memory>

#include "tests/support/catch.h"

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
  return fmt::format("{} {} {}x{} {} weight {}+{} eps {} reducedOut {} layout {} data {} seed {} in place {}{}{}",
                     patternName(pattern), dtypeName(dtype), tokens, hidden, strategyName(strategy),
                     dtypeName(weightType()), weightBias, eps, reducedOut, static_cast<int>(layout),
                     static_cast<int>(data), seed, residualInPlace ? "residual " : "", reducedInPlace ? "reduced " : "",
                     normInPlace ? "norm" : "");
}

FusedProblem::FusedProblem(const FusedCase& asked, int ranks) : asked_(asked) {
  const size_t bytes = asked.count() * dtypeBytes(asked.dtype);
  const auto hidden = static_cast<size_t>(asked.hidden);
  for (int rank = 0; rank < ranks; ++rank) {
    Bytes& input = inputs.emplace_back(bytes);
    for (size_t i = 0; i < asked.count(); ++i) {
      store(asked.dtype, input.data(), i,
            inputValue(asked.data, asked.dtype, asked.seed, rank, ranks, i / hidden, i % hidden));
    }
  }
  residual.resize(bytes);
  for (size_t i = 0; i < asked.count(); ++i) {
    const size_t row = i / hidden;
    double value = inputValue(DataKind::kPlain, asked.dtype, asked.seed + 100, 1000, 1, row, i % hidden);
    if (asked.data == DataKind::kSpecial) {
      if (row % 11 == 0 || row % 11 == 5 || row % 11 == 6) value = 0;
      if (row % 11 == 1) value = -0.0;
      if (row % 11 == 10) {  // cancels the sum
        Bytes sum = referenceAllReduce(
            asked.dtype, fcclSum,
            [&] {
              std::vector<const void*> at;
              for (const Bytes& in : inputs) at.push_back(&in[i * dtypeBytes(asked.dtype)]);
              return at;
            }(),
            1);
        value = -load(asked.dtype, sum.data(), 0);
      }
    }
    store(asked.dtype, residual.data(), i, value);
  }
  const fcclDataType_t weightType = asked.weightType();
  weight.resize(hidden * dtypeBytes(weightType));
  for (size_t i = 0; i < hidden; ++i) {
    const double offset = 0.5 * uniform(asked.seed + 200, i);
    const double sign = hash(asked.seed + 201, i) % 7 == 0 ? -1 : 1;
    store(weightType, weight.data(), i, asked.weightBias == 0 ? sign * (1 + offset) : offset);
  }
}

void FusedProblem::expect() {
  if (expected_) return;
  std::vector<const void*> at;
  for (const Bytes& input : inputs) at.push_back(input.data());
  reduced_ = referenceAllReduce(asked_.dtype, fcclSum, at, asked_.count());
  residualOut_ = referenceResidual(asked_.dtype, reduced_.data(), residual.data(), asked_.count());
  expected_ = true;
}

std::string FusedProblem::check(fcclFusionPattern_t pattern, const FusedOutputs& outputs, const Bytes& norm) {
  expect();
  const PatternTraits& has = traits(pattern);
  const fcclDataType_t dtype = asked_.dtype;
  if (!outputs.reduced.empty()) {
    const std::string wrong = compareElements(dtype, reduced_.data(), outputs.reduced.data(), asked_.count(), true);
    if (!wrong.empty()) return "reducedOut: " + wrong;
  }
  if (has.residual) {
    const std::string wrong =
        compareElements(dtype, residualOut_.data(), outputs.residual.data(), asked_.count(), true);
    if (!wrong.empty()) return "residualOut: " + wrong;
  }
  if (!has.norm) return "";
  const Bytes& r = has.residual ? residualOut_ : reduced_;
  const size_t rowBytes = static_cast<size_t>(asked_.hidden) * dtypeBytes(dtype);
  for (int64_t row = 0; has.normOut && row < asked_.tokens; ++row) {
    const size_t at = static_cast<size_t>(row) * rowBytes;
    const std::vector<double> expected = referenceNorm(dtype, r.data() + at, weight.data(), asked_.weightType(),
                                                       asked_.hidden, asked_.weightBias, asked_.eps);
    const std::string wrong = compareNorm(dtype, expected, outputs.norm.data() + at);
    if (!wrong.empty()) return fmt::format("normOut row {}: {}", row, wrong);
  }
  if (has.quant == Quant::kFp8) {
    const Bytes codes = referenceFp8(dtype, norm.data(), asked_.count(), asked_.fp8DequantScale);
    for (size_t i = 0; i < codes.size(); ++i) {
      if (codes[i] == outputs.quant[i]) continue;
      return fmt::format("quantOut element {}: n {}, expected code {:02x}, got {:02x}", i, load(dtype, norm.data(), i),
                         codes[i], outputs.quant[i]);
    }
  }
  if (has.quant == Quant::kNvfp4) {
    const Nvfp4 expected =
        referenceNvfp4(dtype, norm.data(), asked_.tokens, asked_.hidden, asked_.nvfp4GlobalScale, asked_.layout);
    if (expected.scales.size() != outputs.scales.size()) return "scaleOut has another size";
    for (size_t i = 0; i < expected.scales.size(); ++i) {
      if (expected.scales[i] == outputs.scales[i]) continue;
      return fmt::format("scaleOut byte {} of {}: expected {:02x}, got {:02x}", i, expected.scales.size(),
                         expected.scales[i], outputs.scales[i]);
    }
    for (size_t i = 0; i < asked_.count(); ++i) {
      const int want = expected.codes[i / 2] >> (i % 2 * 4) & 15;
      const int got = outputs.quant[i / 2] >> (i % 2 * 4) & 15;
      if (want == got || expected.undefinedCode[i]) continue;
      return fmt::format("quantOut element {}: n {}, expected code {:x}, got {:x}", i, load(dtype, norm.data(), i),
                         want, got);
    }
  }
  return "";
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
    residual_ = makeInput(problem.residual, guard);
    args.residual = residual_.buffer.data();
    if (!asked.residualInPlace) residualOut_ = GuardedBuffer(bytes, guard);
    residual_.overwritten = asked.residualInPlace;
    args.residualOut = asked.residualInPlace ? residual_.buffer.data() : residualOut_.data();
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
  all.residual = contents(args.residualOut, bytes);
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
    rank.ok(call(rank, own), patternName(pattern));
    const std::string damage = own.intact();
    rank.expect(damage.empty(), damage);
  });
  FusedOutputs first = buffers[0]->outputs();
  for (int rank = 1; rank < group.ranks(); ++rank) {
    const FusedOutputs other = buffers[static_cast<size_t>(rank)]->outputs();
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
