#include "kernels/host/team_base.h"

#include "kernels/formats.h"

namespace fccl::host {

void zeroScalePadding(const RowArgs& a) {
  const int64_t K = a.cols / kNvfp4Block;
  const int64_t paddedK = a.scaleLayout == fcclScaleLinear ? K : (K + 3) / 4 * 4;
  for (int64_t m = 0; m < scaleRows(a.scaleLayout, a.rows); m++) {
    for (int64_t k = m < a.rows ? K : 0; k < paddedK; k++) a.scaleOut[scaleOffset(a.scaleLayout, m, k, K)] = 0;
  }
}

}  // namespace fccl::host
