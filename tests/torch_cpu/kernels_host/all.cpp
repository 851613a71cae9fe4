// The kernels, the plain loops and their comparison in one translation unit: quick to compile.
#include "../../../csrc/kernels/adamw.cu"
#include "../../../csrc/kernels/bias_gelu.cu"
#include "../../../csrc/kernels/cross_entropy.cu"
#include "../../../csrc/kernels/dropout.cu"
#include "../../../csrc/kernels/layer_norm.cu"
#include "../../../csrc/kernels/rms_norm.cu"
#include "../../../csrc/kernels/rotary.cu"
#include "../../../csrc/kernels/swiglu.cu"

#include "../../../csrc/cpu/activation.cpp"
#include "../../../csrc/cpu/cross_entropy.cpp"
#include "../../../csrc/cpu/norm.cpp"
#include "../../../csrc/cpu/rotary_dropout_adamw.cpp"

#include "main.cpp"
