"""Weight-only quantisation of one matrix, by ONNX Runtime's own block quantiser (RTN, symmetric)."""

from __future__ import annotations

import torch
from onnxruntime.quantization.matmul_nbits_quantizer import DefaultWeightOnlyQuantConfig, DefaultWeightOnlyQuantizer
from torch import Tensor

from .graph import BLOCK_SIZE

BITS = {"int4": 4, "int8": 8}


def quantize(weight: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """weight [out,in] as MatMulNBits' B [out, blocks, BLOCK_SIZE*bits/8] uint8 and scales [out, blocks], its dtype.

    Symmetric: the zero point is MatMulNBits' default, 2**(bits - 1).
    """
    config = DefaultWeightOnlyQuantConfig(block_size=BLOCK_SIZE, is_symmetric=True, accuracy_level=4, bits=bits)
    columns = weight.float().t().contiguous().numpy()
    packed, scales, _ = DefaultWeightOnlyQuantizer(config).qbits_block_quant(columns)
    return torch.from_numpy(packed), torch.from_numpy(scales).to(weight.dtype)
