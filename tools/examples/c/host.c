/* host.c - a C host: one row through the first MoE layer of a checkpoint.
 *
 *   cc -std=c99 host.c $(pkg-config --cflags --libs perch) -o host && ./host CHECKPOINT
 */
#include <perch/runtime.h>
#include <stdio.h>
#include <stdlib.h>

static perch_error error = PERCH_ERROR_INIT;

/* Ends the program where a call failed, with the runtime's own words. */
static void check(perch_status status) {
  if (status == PERCH_OK) return;
  fprintf(stderr, "%s: %s\n", perch_status_name(status), error.message);
  exit(2);
}

/* [1, shape[1]] of 32-bit numbers, kDLFloat or kDLInt, in memory of our own. */
static DLTensor make_row(int code, int64_t* shape) {
  DLTensor tensor = {0};
  tensor.data = calloc((size_t)shape[1], 4);
  tensor.device.device_type = kDLCPU;
  tensor.ndim = 2;
  tensor.dtype.code = (uint8_t)code;
  tensor.dtype.bits = 32;
  tensor.dtype.lanes = 1;
  tensor.shape = shape;
  return tensor;
}

int main(int argc, char** argv) {
  perch_runtime* runtime;
  perch_model* model;
  perch_layer* layer;
  perch_model_opts opts = {0};
  opts.struct_size = sizeof(opts);
  opts.in_dtype = opts.out_dtype = PERCH_TYPE_F32; /* of x and y; weights stay as stored */

  check(perch_runtime_create(NULL, &runtime, &error)); /* finds the backends and the policy */
  check(perch_model_open(runtime, argc > 1 ? argv[1] : ".", &opts, &model, &error));
  check(perch_model_layer(model, 0, NULL, &layer, &error)); /* chooses a backend, packs weights */

  const perch_moe_config* moe = perch_model_layer_config(model, 0)->moe;
  int64_t hidden[2] = {1, moe->hidden}, topk[2] = {1, moe->topk};
  DLTensor x = make_row(kDLFloat, hidden), y = make_row(kDLFloat, hidden);
  DLTensor ids = make_row(kDLInt, topk), weights = make_row(kDLFloat, topk);
  for (int64_t i = 0; i < hidden[1]; ++i) ((float*)x.data)[i] = (float)(i % 5) - 2;
  for (int64_t i = 0; i < topk[1]; ++i) { /* a router's answer: experts 0, 1, ... alike */
    ((int32_t*)ids.data)[i] = (int32_t)i;
    ((float*)weights.data)[i] = 1.0f / (float)topk[1];
  }

  perch_call_shape one_row = {sizeof(one_row), PERCH_FORM_STANDARD, 1};
  perch_workspace_req need = {sizeof(need), 0, 0, 0};
  check(perch_layer_workspace(layer, &one_row, &need, &error));
  char* scratch = malloc(need.bytes + need.align + 1);
  perch_exec_args args = {0};
  args.struct_size = sizeof(args);
  args.x = &x, args.y = &y, args.topk_ids = &ids, args.topk_weights = &weights;
  args.workspace = scratch + (need.align - (uintptr_t)scratch % need.align) % need.align;
  args.workspace_bytes = need.bytes;
  check(perch_layer_execute(layer, &args, &error)); /* allocates nothing: call it in your loop */

  perch_layer_info info = {0};
  info.struct_size = sizeof(info), info.layout.struct_size = sizeof(info.layout);
  check(perch_layer_get_info(layer, &one_row, &info, &error));
  printf("%s on %s/%u: y[0] = %g\n", info.name, info.backend, info.variant, *(float*)y.data);
  perch_layer_destroy(layer), perch_model_destroy(model), perch_runtime_destroy(runtime);
  return 0;
}
