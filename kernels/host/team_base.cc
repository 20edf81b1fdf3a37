#include "kernels/host/team_base.h"

#include <cstring>

#include "kernels/formats.h"

namespace fccl::host {

// Runs before any scale is written, so whole tiles and whole groups of four columns may be zeroed that also hold
// scales.
void zeroScalePadding(const RowArgs& a) {
  if (a.scaleLayout == fcclScaleLinear) return;
  const int64_t K = a.cols / kNvfp4Block;
  const int64_t tileRows = scaleRows(a.scaleLayout, 1);
  const int64_t tileBytes = tileRows * ((K + 3) / 4) * 4;
  if (a.rows % tileRows != 0) {
    std::memset(a.scaleOut + a.rows / tileRows * tileBytes, 0, static_cast<size_t>(tileBytes));
  }
  if (K % 4 == 0) return;
  for (int64_t m = 0; m < a.rows; m++) std::memset(a.scaleOut + scaleOffset(a.scaleLayout, m, K / 4 * 4, K), 0, 4);
}

}  // namespace fccl::host
