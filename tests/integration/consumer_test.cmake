# SPDX-License-Identifier: Apache-2.0
# Installs the build into a scratch prefix, builds the consumer project against it and runs it on a tiny model.
# cmake -DBINARY_DIR=build/release -DSOURCE_DIR=tests/integration/consumer -DEXAMPLES=examples -DTEXT=README.md
#   -DPRINT_TEST_CONFIG=FILE -DSCRATCH=DIR -P ...
function(run)
  execute_process(COMMAND ${ARGV} RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT result EQUAL 0)
    list(JOIN ARGV " " command)
    message(FATAL_ERROR "${command}\n${output}")
  endif()
  message(STATUS "${output}")
endfunction()

file(REMOVE_RECURSE ${SCRATCH})
file(MAKE_DIRECTORY ${SCRATCH}/model)
run(${CMAKE_COMMAND} --install ${BINARY_DIR} --prefix ${SCRATCH}/prefix)
run(${CMAKE_COMMAND} -S ${SOURCE_DIR} -B ${SCRATCH}/build -G Ninja -DCMAKE_PREFIX_PATH=${SCRATCH}/prefix
    -DCMAKE_BUILD_TYPE=Release)
run(${CMAKE_COMMAND} --build ${SCRATCH}/build)
run(${CMAKE_COMMAND} -S ${EXAMPLES} -B ${SCRATCH}/examples -G Ninja -DCMAKE_PREFIX_PATH=${SCRATCH}/prefix
    -DCMAKE_BUILD_TYPE=Release)
run(${CMAKE_COMMAND} --build ${SCRATCH}/examples)

# The shared library exports the public API and nothing of the folders below it.
file(GLOB library ${SCRATCH}/prefix/lib*/libanabatic.so ${SCRATCH}/prefix/lib*/*/libanabatic.so)
execute_process(COMMAND nm -D --defined-only -C ${library} OUTPUT_VARIABLE symbols COMMAND_ERROR_IS_FATAL ANY)
string(REGEX MATCHALL "[A-Za-z] (std::|anabatic::[a-z]+::)[^\n]*" hidden "${symbols}")
if(hidden OR NOT symbols MATCHES "anabatic::Session::step" OR NOT symbols MATCHES "anabatic::to_settings")
  message(FATAL_ERROR "expected ${library} to export the public API alone, found ${hidden}")
endif()

file(COPY_FILE ${TEXT} ${SCRATCH}/text.txt)
run(${SCRATCH}/prefix/bin/anabatic tokenize --train ${SCRATCH}/text.txt --vocab_size 300 --output ${SCRATCH}/model)
file(WRITE ${SCRATCH}/model/config.json [[{
  "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "vocab_size": 300, "hidden_size": 16,
  "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
  "num_local_experts": 4, "num_experts_per_tok": 2, "max_position_embeddings": 64, "rope_theta": 10000.0}]])

# The suite's configuration, as tests/support/test_config.h hands it on to the tests.
execute_process(COMMAND ${PRINT_TEST_CONFIG} OUTPUT_VARIABLE settings COMMAND_ERROR_IS_FATAL ANY)
string(REGEX MATCHALL "[^\n]+" settings "${settings}")
run(${SCRATCH}/build/consumer ${SCRATCH}/model/config.json ${SCRATCH}/text.txt ${SCRATCH}/run ${settings})

run(${SCRATCH}/examples/train ${SCRATCH}/model ${SCRATCH}/text.txt ${SCRATCH}/example)
run(${SCRATCH}/examples/custom_loop ${SCRATCH}/model ${SCRATCH}/loop)
run(${SCRATCH}/examples/two_engines ${SCRATCH}/model ${SCRATCH}/text.txt ${SCRATCH}/engine)
run(${SCRATCH}/examples/read_plan ${SCRATCH}/model)
execute_process(COMMAND ${SCRATCH}/examples/read_plan ${SCRATCH}/model 1 OUTPUT_VARIABLE output COMMAND_ERROR_IS_FATAL ANY)
if(NOT output MATCHES "the smallest budget that does: [0-9.]+ MB")
  message(FATAL_ERROR "expected a refusal with the smallest budget, got ${output}")
endif()
