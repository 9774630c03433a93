"""An operation and a kernel of one's own that several tests use."""

import kerascl as kc


def softsign():
    return kc.elementwise(
        "softsign", "x / (1 + fabs(x))", grad=lambda g, y, x: g / (1 + kc.abs(x)) ** 2
    )


def row_sums():
    """Sums of rows, through local memory."""
    return kc.kernel(
        """
        __kernel void row_sums(__global const x_T* x, __global y_T* y) {
          __local float part[GROUP];
          const int row = get_group_id(0), item = get_local_id(0);
          float sum = 0;
          for (int k = item; k < x_DIM1; k += GROUP) sum += x_LOAD(row * x_DIM1 + k);
          part[item] = sum;
          barrier(CLK_LOCAL_MEM_FENCE);
          for (int step = GROUP / 2; step > 0; step /= 2) {
            if (item < step) part[item] += part[item + step];
            barrier(CLK_LOCAL_MEM_FENCE);
          }
          if (item == 0) y_STORE(row, part[0]);
        }
        """,
        "row_sums",
        "x",
        {"y": lambda x: (x.shape[:1], x.dtype)},
        grid=lambda x: 16 * x.shape[0],
        local=16,
        template={"GROUP": 16},
        grad=lambda g, y, x: kc.broadcast_to(g[:, None], x.shape),
    )


# A matrix product for `kerascl.solver`.
PRODUCT = """
__kernel void own_product(__global const a_T* a, __global const b_T* b EPILOGUE_PARAMS) {
  const int column = get_global_id(0), row = get_global_id(1), batch = get_global_id(2);
  ACC_T sum = 0;
  for (int k = 0; k < K; ++k)
    sum += (ACC_T)a_LOAD(a_AT(batch, row, k)) * (ACC_T)b_LOAD(b_AT(batch, k, column));
  EPILOGUE(sum * FACTOR, out_AT(batch, row, column));
}
"""
