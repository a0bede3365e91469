"""The cases that properties are tried on: small, ragged, past a tile of 64 keys. A literal table."""

from __future__ import annotations

from collections.abc import Iterator

from ...optimized.implementation import Implementation
from ..case import Case
from ..config import load
from ..facts import facts

_TINY: tuple[str, ...] = (
    "dense_mha:tiny:h2:q4,3:k9,70:bf16:randn:contiguous:-:s0",
    "dense_mha:tiny:h3:q5,1,6:k7,66,6:bf16:wide:contiguous:-:s1",
    "masked_mha:tiny:h2:q4,3:k9,70:top6:bf16:randn:contiguous:-:s0",
    "masked_mha:tiny:h3:q5,1,6:k7,66,6:top9:bf16:wide:contiguous:-:s1",
    "sparse_mqa:tiny:h2:q3,2:k20,90:top70:bf16:randn:contiguous:-:s0",
    "sparse_mqa:tiny:h5:q4,2:k50,20:top13:bf16:wide:contiguous:interleaved+lengths:s1",
    "sparse_mqa:tiny:h2:q3,2:k20,90:top70:e4m3:randn:contiguous:-:s0",
    "indexer_scores:tiny:h4:q4,3:k9,70:bf16:randn:contiguous:-:s0",
    "indexer_scores:tiny:h4:q5,2:k40,66:bf16:wide:contiguous:q-scale:s1",
    "paged_indexer_scores:tiny:h4:q2,2:k9,70:e4m3:randn:contiguous:-:s0",
    "paged_indexer_scores:tiny:h4:q3x1:k1,64,130:e4m3:wide:contiguous:q-scale:s1",
    "topk_select:tiny:h1:q4,3:k60,90:top12:bf16:randn:contiguous:-:s0",
    "topk_select:tiny:h1:q3,2:k30,200:top40:bf16:ties:contiguous:backwards:s1",
    "merge_lse:tiny:h2:q4,3:k4,3:bf16:randn:contiguous:-:s0",
    "merge_lse:tiny:h3:q5:k5:bf16:empties:contiguous:-:s1",
    "quantize:tiny:h1:q1:k5:bf16:randn:contiguous:-:s0",
    "quantize:tiny:h1:q1:k6:fp32:edges:contiguous:ue8m0:s1",
    "write_cache:tiny:h1:q3,2:k5,4:bf16:randn:contiguous:page-16:s0",
    "write_index:tiny:h1:q3,2:k5,4:bf16:randn:contiguous:page-16:s0",
    "gather:tiny:h1:q1,1:k21,4:bf16:randn:contiguous:page-16:s0",
    "gather_index:tiny:h1:q1,1:k21,4:bf16:randn:contiguous:page-16:s0",
    "convert_indices:tiny:h1:q3,2:k20,40:top16:bf16:randn:contiguous:interleaved+page-16:s0",
    "build_mask:tiny:h1:q3,2:k20,40:top16:bf16:randn:contiguous:-:s0",
)
#: For kernels that take the dims of one model alone, or one dtype; tried in this order where no tiny case fits.
_OTHERS: tuple[str, ...] = (
    "dense_mha:deepseek-v3.2:h2:q4,3:k9,70:bf16:randn:contiguous:-:s0",
    "dense_mha:glm-5:h2:q4,3:k9,70:bf16:randn:contiguous:-:s0",
    "dense_mha:deepseek-v3.2:h2:q4,3:k9,70:fp32:randn:contiguous:-:s0",
    "masked_mha:deepseek-v3.2:h2:q4,3:k9,70:top6:bf16:randn:contiguous:-:s0",
    "sparse_mqa:deepseek-v3.2:h16:q3,2:k20,90:top64:bf16:randn:contiguous:-:s0",
    "sparse_mqa:deepseek-v3.2:h64:q3,2:k20,90:top64:bf16:randn:contiguous:ds-mla+pages:s0",
    "sparse_mqa:deepseek-v3.2:h16:q3,2:k20,90:top64:bf16:randn:contiguous:ds-mla:s0",
    "indexer_scores:deepseek-v3.2:h64:q4,3:k9,70:bf16:randn:contiguous:-:s0",
    "indexer_scores:deepseek-v3.2:h64:q4,3:k9,70:e4m3:randn:contiguous:-:s0",
    "paged_indexer_scores:deepseek-v3.2:h64:q2,2:k9,70:e4m3:randn:contiguous:-:s0",
    "topk_select:deepseek-v3.2:h1:q4,3:k60,90:top12:bf16:randn:contiguous:-:s0",
)


def property_cases(operator: str) -> tuple[Case, ...]:
    """The small cases of an operator, in the order in which they are tried."""
    return tuple(Case.parse(text) for text in _TINY if text.startswith(f"{operator}:"))


def cases_for(implementation: Implementation, device: str, seed: int = 0) -> tuple[Case, ...]:
    """The small cases that an implementation takes; where there is none, the first of the larger ones that it takes."""

    def taken(cases: Iterator[Case]) -> Iterator[Case]:
        for case in cases:
            if implementation.supports(facts(case, load(case.geometry), device)) is None:
                yield case.with_seed(case.seed + seed)

    small = tuple(taken(iter(property_cases(implementation.operator))))
    others = (Case.parse(text) for text in _OTHERS if text.startswith(f"{implementation.operator}:"))
    return small or tuple(one for _, one in zip(range(1), taken(others), strict=False))
