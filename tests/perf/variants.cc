#include "tests/perf/variants.h"

namespace fccl::perf {
namespace {

std::unique_ptr<Buffers> fcclBuffers(const Case& c, bool inPlace, fcclComm_t comm) {
  return std::make_unique<Buffers>(c, inPlace, c.windows ? MemoryKind::kWindow : MemoryKind::kPlain, comm, 0);
}

class PlainFccl final : public Variant {
 public:
  PlainFccl(const Case& c, bool inPlace, int rank, fcclComm_t comm)
      : Variant("fccl", c, inPlace, rank, fcclBuffers(c, inPlace, comm)), case_(c), comm_(comm) {}
  void run() override {
    require(fcclAllReduce(buffers().input, buffers().output, case_.count(), case_.dtype, case_.op, comm_, nullptr),
            "fcclAllReduce", comm_);
  }

 private:
  const Case case_;
  fcclComm_t comm_;
};

class FusedFccl final : public Variant {
 public:
  FusedFccl(const Case& c, bool inPlace, int rank, fcclComm_t comm)
      : Variant("fccl", c, inPlace, rank, fcclBuffers(c, inPlace, comm)), comm_(comm) {
    args_.pattern = c.pattern;
    args_.dtype = c.dtype;
    args_.tokens = c.tokens;
    args_.hidden = c.hidden;
    args_.input = buffers().input;
    args_.residual = buffers().residual;
    args_.weight = buffers().weight;
    args_.residualOut = buffers().residualOut;
    args_.normOut = buffers().normOut;
    args_.quantOut = buffers().quantOut;
    args_.scaleOut = buffers().scaleOut;
    const PatternTraits traits = traitsOf(c.pattern);
    if (traits.fp8) args_.fp8DequantScale = &buffers().fp8DequantScale;
    if (traits.nvfp4) args_.nvfp4GlobalScale = &buffers().nvfp4GlobalScale;
    args_.strategy = c.strategy;
    if (!c.sharded) return;
    int ranks = 0;
    require(fcclCommCount(comm, &ranks), "fcclCommCount", comm);
    shardResidual(c, ranks, rank, args_);
  }
  void run() override { require(fcclAllReduceFused(&args_, comm_, nullptr), "fcclAllReduceFused", comm_); }

 private:
  fcclFusedArgs_t args_ = FCCL_FUSED_ARGS_INITIALIZER;
  fcclComm_t comm_;
};

class Unfused final : public Variant {
 public:
  Unfused(const Case& c, bool inPlace, int rank, fcclComm_t comm)
      : Variant("unfused", c, inPlace, rank, fcclBuffers(c, inPlace, comm)),
        case_(c),
        comm_(comm),
        epilogue_(epilogueArgs(c, buffers(), buffers().output, c.dtype)) {}
  void run() override {
    require(fcclAllReduce(buffers().input, buffers().output, case_.count(), case_.dtype, fcclSum, comm_, nullptr),
            "fcclAllReduce", comm_);
    epilogueLoops().epilogue(epilogue_);
  }

 private:
  const Case case_;
  fcclComm_t comm_;
  const EpilogueArgs epilogue_;
};

class EpilogueAlone final : public Variant {
 public:
  EpilogueAlone(const Case& c, bool inPlace, int rank)
      : Variant("epilogue", c, inPlace, rank, std::make_unique<Buffers>(c, inPlace, MemoryKind::kPlain, nullptr, 0)),
        epilogue_(epilogueArgs(c, buffers(), buffers().input, c.dtype)) {}
  void run() override { epilogueLoops().epilogue(epilogue_); }
  bool hasResult() const override { return false; }

 private:
  const EpilogueArgs epilogue_;
};

}  // namespace

EpilogueArgs epilogueArgs(const Case& c, const Buffers& buffers, const void* sum, fcclDataType_t sumType) {
  EpilogueArgs args;
  args.pattern = c.pattern;
  args.dtype = c.dtype;
  args.sumType = sumType;
  args.tokens = c.tokens;
  args.hidden = c.hidden;
  args.sum = sum;
  args.residual = buffers.residual;
  args.weight = buffers.weight;
  args.residualOut = buffers.residualOut;
  args.normOut = buffers.normOut;
  args.quantOut = buffers.quantOut;
  args.scaleOut = buffers.scaleOut;
  args.fp8DequantScale = buffers.fp8DequantScale;
  args.nvfp4GlobalScale = buffers.nvfp4GlobalScale;
  return args;
}

std::unique_ptr<Variant> makeFccl(const Case& c, bool inPlace, int rank, fcclComm_t comm) {
  if (c.fused()) return std::make_unique<FusedFccl>(c, inPlace, rank, comm);
  return std::make_unique<PlainFccl>(c, inPlace, rank, comm);
}

std::unique_ptr<Variant> makeUnfused(const Case& c, bool inPlace, int rank, fcclComm_t comm) {
  return std::make_unique<Unfused>(c, inPlace, rank, comm);
}

std::unique_ptr<Variant> makeEpilogueAlone(const Case& c, bool inPlace, int rank) {
  return std::make_unique<EpilogueAlone>(c, inPlace, rank);
}

}  // namespace fccl::perf
