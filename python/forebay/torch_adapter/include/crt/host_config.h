// As host_defines.h beside it: CUDA's headers include it, and the adapter needs nothing of it.
#pragma once
