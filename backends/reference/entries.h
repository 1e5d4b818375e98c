// The functions of perch_backend_api, for the table in backend.cc. Each is guarded: what goes wrong
// inside comes out as a status.
#pragma once

#include <perch/backend.h>

namespace reference {

perch_status PERCH_CALL create(const perch_host_api* host, const perch_kv* options,
                               uint32_t num_options, perch_backend** backend, perch_error* error);
void PERCH_CALL destroy(perch_backend* backend);
uint32_t PERCH_CALL device_count(perch_backend* backend);
perch_status PERCH_CALL device_get(perch_backend* backend, uint32_t index, perch_device_info* info,
                                   perch_error* error);
uint32_t PERCH_CALL variant_count(perch_backend* backend, const perch_layer_config* config);
perch_status PERCH_CALL query_support(perch_backend* backend, const perch_layer_config* config,
                                      uint32_t variant, perch_support* support, perch_error* error);
perch_status PERCH_CALL describe(perch_backend* backend, const perch_layer_config* config,
                                 uint32_t variant, const perch_call_shape* shape,
                                 perch_layout* layout, perch_error* error);
perch_status PERCH_CALL prepare_begin(perch_backend* backend, const perch_layer_config* config,
                                      uint32_t variant, const perch_stream* stream,
                                      perch_builder** builder, perch_error* error);
perch_status PERCH_CALL prepare_put(perch_builder* builder, int32_t expert,
                                    const perch_named_tensor* tensors, uint32_t num_tensors,
                                    perch_error* error);
perch_status PERCH_CALL prepare_end(perch_builder* builder, perch_prepared** prepared,
                                    perch_error* error);
void PERCH_CALL prepare_abort(perch_builder* builder);
perch_status PERCH_CALL update(perch_prepared* prepared, int32_t expert,
                               const perch_named_tensor* tensors, uint32_t num_tensors,
                               perch_error* error);
void PERCH_CALL prepared_destroy(perch_prepared* prepared);
perch_status PERCH_CALL workspace(perch_prepared* prepared, const perch_call_shape* shape,
                                  perch_workspace_req* request, perch_error* error);
perch_status PERCH_CALL execute_call(perch_prepared* prepared, const perch_exec_args* args,
                                     perch_error* error);

}  // namespace reference
