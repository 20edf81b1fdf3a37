// The ways of doing a case that are timed against each other.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tests/perf/buffers.h"
#include "tests/perf/cases.h"
#include "tests/perf/epilogue_loops.h"
#include "tests/perf/ranks.h"

namespace fccl::perf {

class Variant {
 public:
  Variant(std::string name, const Case& c, bool inPlace, int rank, std::unique_ptr<Buffers> buffers)
      : name_(std::move(name)),
        inPlace_(inPlace),
        rank_(rank),
        buffers_(std::move(buffers)),
        producer_(c.dtype, c.op, rank),
        count_(c.count()) {}
  virtual ~Variant() = default;
  Variant(const Variant&) = delete;
  Variant& operator=(const Variant&) = delete;

  const std::string& name() const { return name_; }
  bool inPlace() const { return inPlace_; }
  int rank() const { return rank_; }
  Buffers& buffers() { return *buffers_; }
  const Buffers& buffers() const { return *buffers_; }

  void produce(uint64_t call) { producer_.produce(buffers_->input, count_, call); }
  virtual void run() = 0;
  // How many roundings to the data type the sum may have had beyond the one of a correctly rounded sum.
  virtual int extraRoundings() const { return 0; }
  // False where the outputs are not those of the case.
  virtual bool hasResult() const { return true; }

 private:
  const std::string name_;
  const bool inPlace_;
  const int rank_;
  const std::unique_ptr<Buffers> buffers_;
  const Producer producer_;
  const size_t count_;
};

using Variants = std::vector<std::unique_ptr<Variant>>;

// fcclAllReduce or fcclAllReduceFused.
std::unique_ptr<Variant> makeFccl(const Case& c, bool inPlace, int rank, fcclComm_t comm);
// fcclAllReduce, then the loops of epilogue_loops.h. For fused patterns.
std::unique_ptr<Variant> makeUnfused(const Case& c, bool inPlace, int rank, fcclComm_t comm);
// "epilogue": those loops alone, on this rank's own input. It shows how much of a peer's time they are.
std::unique_ptr<Variant> makeEpilogueAlone(const Case& c, bool inPlace, int rank);

// The epilogue of `c` from `sum` into the outputs of `buffers`.
EpilogueArgs epilogueArgs(const Case& c, const Buffers& buffers, const void* sum, fcclDataType_t sumType);

}  // namespace fccl::perf
