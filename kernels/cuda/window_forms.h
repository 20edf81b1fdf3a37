// Which kernels for user buffers exist. All are for any number of ranks.
#pragma once

#include "kernels/cuda/forms.h"

namespace fccl::cuda {

// With a norm (ONESHOT form): a row over the blocks of a cluster, one block where it has few packs. Without (TWOSHOT
// form): this rank's share of one run of packs. Of each one for rows that begin at 16 bytes, one for all others.
constexpr Form kWindowForms[] = {
    {.norm = true, .packs = 2, .cluster = true},
    {.norm = true, .packs = 2, .cluster = true, .aligned = false},
    {.norm = true, .nvfp4 = true, .packs = 2, .cluster = true},
    {.norm = true, .nvfp4 = true, .packs = 2, .cluster = true, .aligned = false},
    {.protocol = Protocol::kTwoshot, .packs = 2},
    {.protocol = Protocol::kTwoshot, .packs = 2, .aligned = false},
};

// NULL: there is no such kernel.
const void* findWindowKernel(fcclDataType_t dtype, const Form& form);
// Of one data type; one file for each.
template <class D>
const void* findTypedWindowKernel(const Form& form);

}  // namespace fccl::cuda
