"""The k-th largest score of a row that lies in the registers of one program, and which scores reach it.

The threshold is bracketed between a score that at least k scores reach and one that fewer reach. Each step counts the
scores at or above a pivot: the point where a straight line through the logarithms of the two counts meets k; at first
the threshold of the row before or, where rows lie apart from each other, what it would be with this row's mean and
spread. It ends when exactly k scores reach the pivot, or nothing lies between. What is compared are the scores
themselves: the sign of ``score - pivot`` is shifted into a word, one of an element's two instructions, so that each
count also says which scores it counted. The words of a thread's elements outside the window are masked, never the
elements.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

#: The bracket in the order of floats: -inf, and one above +inf. NaN reaches every pivot.
_LEAST = gl.constexpr(-0x7F800001)
_TOP = gl.constexpr(0x7F800001)
#: Steps that look at the scores; after them the bracket is halved alone, 32 times at most.
_STEPS = gl.constexpr(40)


@gluon.jit
def _order(score):
    """int32 in the order of the scores, -0.0 as 0.0."""
    bits = gl.where(score == 0.0, 0.0, score).to(gl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@gluon.jit
def _score(order):
    """The score of an order; what _order takes back."""
    return (order ^ ((order >> 31) & 0x7FFFFFFF)).to(gl.float32, bitcast=True)


@gluon.jit
def ones(bits):
    """How many bits are set."""
    return gl.inline_asm_elementwise("popc.b32 $0, $1;", "=r,r", [bits], dtype=gl.int32, is_pure=True, pack=1)


@gluon.jit
def _approximate(FUNCTION: gl.constexpr, x):
    ASM: gl.constexpr = FUNCTION + ".approx.ftz.f32 $0, $1;"
    return gl.inline_asm_elementwise(ASM, "=r,r", [x], dtype=gl.float32, is_pure=True, pack=1)


@gluon.jit
def _log2(x):
    return _approximate("lg2", x)


@gluon.jit
def _inverse(x):
    return _approximate("rcp", x)


@gluon.jit
def _root(x):
    return _approximate("sqrt", x)


@gluon.jit
def _push_sign(word, score, less):
    """The word shifted up by one, the sign of score + less in its lowest bit; a NaN made here has none."""
    return gl.inline_asm_elementwise(
        "{ .reg .b32 d; add.f32 d, $2, $3; shf.l.wrap.b32 $0, d, $1, 1; }", "=r,r,r,r", [word, score, less],
        dtype=gl.int32, is_pure=True, pack=1,
    )  # fmt: skip


@gluon.jit
def total(many):
    """Sum over the row, in every thread: one meeting of the warps."""
    WARPS: gl.constexpr = many.shape[0] // 128
    part = gl.sum(gl.reshape(many, [WARPS, 128]), 1)
    part = gl.convert_layout(part, gl.BlockedLayout([WARPS], [32], [WARPS], [0]))
    return gl.sum(part, 0)


@gluon.jit
def _reach(scores, pivot, window, DEEP: gl.constexpr):
    """Words of the scores at or above a pivot; row DEEP - 1 is the lowest bit. NaN reaches all, -0.0 reaches 0.0."""
    less = 0.0 - _score(pivot)
    word = window * 0
    for i in gl.static_range(DEEP):
        word = _push_sign(word, scores[i], less)
    return ~word & window


@gluon.jit
def _nans(scores, window, DEEP: gl.constexpr):
    """Words of the NaN."""
    word = window * 0
    for i in gl.static_range(DEEP):
        word = word * 2 + (scores[i] != scores[i]).to(gl.int32)
    return word & window


@gluon.jit
def _ends(scores, DEEP: gl.constexpr):
    """Least and largest of what the registers hold, outside the window too; NaN only where all is."""
    least = scores[0]
    most = scores[0]
    for i in gl.static_range(1, DEEP):
        least = gl.minimum(least, scores[i])
        most = gl.maximum(most, scores[i])
    return gl.min(least, 0), gl.max(most, 0)


@gluon.jit
def _least_from(scores, low, DEEP: gl.constexpr):
    """The least score from low on, outside the window too: where many are equal, it often is the threshold."""
    floor = _score(low)
    least = gl.where(scores[0] >= floor, scores[0], float("inf"))
    for i in gl.static_range(1, DEEP):
        least = gl.minimum(least, gl.where(scores[i] >= floor, scores[i], float("inf")))
    return gl.min(least, 0)


@gluon.jit
def _spread(scores, window, length, near, DEEP: gl.constexpr):
    """Mean and standard deviation of a sample, of one row of columns in DEEP / 4; near: one of the scores."""
    EACH: gl.constexpr = DEEP // 4
    WIDE: gl.constexpr = window.shape[0]
    many = length * 0
    first = window.to(gl.float32) * 0.0
    second = first
    for i in gl.static_range(0, DEEP, EACH):
        off = gl.where((window >> (DEEP - 1 - i)) & 1 != 0, scores[i] - near, 0.0)
        first += off
        second += off * off
        many += gl.minimum(gl.maximum(length - i * WIDE, 0), WIDE)
    each = _inverse(many.to(gl.float32))
    mean = total(first) * each
    return near + mean, _root(gl.maximum(total(second) * each - mean * mean, 0.0))


@gluon.jit
def threshold(scores, window, length, k, near, last, unit, apart, z, z_unit, DEEP: gl.constexpr, SAMPLED: gl.constexpr):
    """Search: (threshold, how many reach it, how many lie above, words of the two; unit, apart, z, z_unit).

    scores: DEEP tensors, one for each row's columns; window: words of the elements in the window; length: how many
    those are, more than k. The threshold is an order; where more than k reach it, all that do not lie above equal it.

    What the search begins with does not change the result. last: the threshold of the row before; unit: how far apart
    scores lie whose counts differ by a factor of two, 0 if not known. apart: rows lie apart from each other, so that
    their thresholds are alike only as z standard deviations from the mean, and the units as z_unit of them; near: one
    of the row's scores. Not SAMPLED: always as if they did not.
    """
    rough = last
    mean = unit * 0.0
    spread = unit * 0.0
    off = unit * 0.0
    if SAMPLED and apart != 0:
        mean, spread = _spread(scores, window, length, near, DEEP)
        guess = mean + z * spread
        if gl.abs(guess) < float("inf"):
            rough = _order(guess)
            unit = z_unit * spread
    low = length * 0 + _LEAST
    high = length * 0 + _TOP
    top = high
    at_low = length
    at_high = length * 0
    step = length * 0
    side = length * 0
    k = length * 0 + k  # a tensor, also where k is a constant
    goal = _log2(k.to(gl.float32))
    # Distances of the counts at the two ends from k, as powers of two: as they are, and as the straight line has them.
    log_low = _log2(length.to(gl.float32)) - goal
    log_high = goal + 1.0
    over = log_low
    under = log_high
    word_low = window
    word_high = window * 0
    while (high - 1 > low) & (at_low != k):
        if (step == 2) & ((low == _LEAST) | (high == top)):
            least, most = _ends(scores, DEEP)
            low = gl.maximum(low, gl.minimum(_order(least), _TOP - 1))
            if high == top:
                high = gl.maximum(gl.minimum(_order(most), _TOP - 1), low) + 1
                top = high
        pivot = (low & high) + ((low ^ high) >> 1)
        if step == 0:
            pivot = rough
        elif (step < 8) | ((step % 2 == 0) & (step % 8 != 0) & (step < _STEPS)):
            least = _score(low)
            most = _score(high - 1)
            if high == _TOP:
                # A little too far: the bracket gets its other end.
                guess = least + log_low * unit * 1.3
            elif low == _LEAST:
                guess = most - log_high * unit * 1.3
            else:
                guess = least + (most - least) * (over * _inverse(over + under))
                if at_low - at_high > 32:
                    unit = (most - least) * _inverse(log_low + log_high)
            if gl.abs(guess) < float("inf"):
                pivot = _order(guess)
        elif (step % 8 == 0) & (step < _STEPS):
            pivot = _order(_least_from(scores, low, DEEP)) + 1
        elif (step % 8 == 1) & (step < _STEPS):
            pivot = high - 1
        pivot = gl.minimum(gl.maximum(pivot, low + 1), high - 1)
        word = _reach(scores, pivot, window, DEEP)
        count = total(ones(word))
        log_count = _log2(gl.maximum(count.to(gl.float32), 0.5)) - goal
        if step == 0:
            off = gl.abs(log_count)
        # An end that stays again counts less: the straight line would creep up on the other.
        if count >= k:
            low = pivot
            at_low = count
            log_low = log_count
            word_low = word
            over = log_low
            under = gl.where(side > 0, under * 0.7, log_high)
            side = length * 0 + 1
        else:
            high = pivot
            at_high = count
            log_high = 0.0 - log_count
            word_high = word
            under = log_high
            over = gl.where(side < 0, over * 0.7, log_low)
            side = length * 0 - 1
        step += 1
    if (at_low != k) & (high == top):
        word_high = _nans(scores, window, DEEP)
        at_high = total(ones(word_high))
    found = _score(low)
    if SAMPLED and (at_low > k + 32) & (high < _TOP - 1):
        unit = (_score(high) - found) * _inverse(log_low + log_high)  # many are equal
    if SAMPLED and apart != 0:
        # Twice as close: the sample is work too.
        apart = (gl.abs(found - _score(rough)) * 2.0 <= gl.abs(found - _score(last))).to(gl.int32)
        if (spread > 0.0) & (spread < float("inf")):
            z = (found - mean) * _inverse(spread)
            z_unit = unit * _inverse(spread)
    else:
        apart = ((off > 1.0) & (low != last)).to(gl.int32)
    return low, at_low, at_high, word_low, word_high, unit, apart, z, z_unit
