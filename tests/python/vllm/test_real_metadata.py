# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
"""`aule.vllm.arrays_of` takes the metadata class of the real vLLM, which build/vllm has."""

from __future__ import annotations

import aule.vllm
import torch
from vllm.v1.attention.backend import CommonAttentionMetadata


def test_the_metadata_of_the_installed_vllm_becomes_arrays() -> None:
    starts = torch.tensor([0, 3, 4, 4], dtype=torch.int32)  # one request is padding
    step = aule.vllm.arrays_of(CommonAttentionMetadata(
        query_start_loc=starts, query_start_loc_cpu=starts.clone(),
        seq_lens=torch.tensor([3, 9, 0], dtype=torch.int32), num_reqs=3, num_actual_tokens=6,
        max_query_len=3, max_seq_len=9,
        block_table_tensor=torch.tensor([[1, 0], [2, 5], [0, 0]], dtype=torch.int32),
        slot_mapping=torch.tensor([16, 17, 18, 40, -1, -1])))
    assert step.num_tokens == 4
    assert step.options == {"causal": True}
    assert step.arrays["seq_lens_kv"].tolist() == [3, 9, 0]
    assert step.arrays["slot_mapping"].tolist() == [16, 17, 18, 40]
