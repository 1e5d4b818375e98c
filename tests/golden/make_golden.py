#!/usr/bin/env python3
"""Writes the golden vectors beside this file, from the definitions and exact fractions alone.

Usage: make_golden.py           writes the files
       make_golden.py --check   compares them with what it would write; exit code 1 if one differs

Nothing here comes from Perch: numbers are fractions.Fraction until the stated rounding, which is
round() of an exact quotient (to nearest, ties to even). Lines are "name token token ...".
"""
import os
import sys
from fractions import Fraction as F

HERE = os.path.dirname(os.path.abspath(__file__))


# ---- formats: (exponent bits, mantissa bits, bias, what the top exponent means) ----
FORMATS = {
    "f32": (8, 23, 127, "ieee"),
    "f16": (5, 10, 15, "ieee"),
    "bf16": (8, 7, 127, "ieee"),
    "e4m3": (4, 3, 7, "nan"),
    "e5m2": (5, 2, 15, "ieee"),
    "e3m2": (3, 2, 3, "none"),
    "e2m3": (2, 3, 1, "none"),
    "e2m1": (2, 1, 1, "none"),
}


def decode(name, code):
    """A Fraction, or 'nan', 'inf', '-inf'."""
    if name == "e8m0":
        return "nan" if code == 255 else F(2) ** (code - 127)
    e_bits, m_bits, bias, special = FORMATS[name]
    m = code & ((1 << m_bits) - 1)
    e = (code >> m_bits) & ((1 << e_bits) - 1)
    sign = -1 if code >> (e_bits + m_bits) else 1
    top = (1 << e_bits) - 1
    if special == "ieee" and e == top:
        return "nan" if m else ("-inf" if sign < 0 else "inf")
    if special == "nan" and e == top and m == (1 << m_bits) - 1:
        return "nan"
    if e == 0:
        return sign * F(m) * F(2) ** (1 - bias - m_bits)
    return sign * F(m + (1 << m_bits)) * F(2) ** (e - bias - m_bits)


def largest(name):
    e_bits, m_bits, bias, special = FORMATS[name]
    codes = range(1 << (e_bits + m_bits))
    return max(v for v in (decode(name, c) for c in codes) if isinstance(v, F))


LARGEST = {name: largest(name) for name in FORMATS if name != "f32"}
LARGEST["f32"] = (2 - F(1, 2**23)) * F(2) ** 127


def rne(value, name):
    """`value` rounded to the format; beyond its largest number 'inf' (ieee) or that number."""
    if value == 0:
        return F(0)
    _, m_bits, bias, special = FORMATS[name]
    size = abs(value)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    if F(2) ** exponent > size:
        exponent -= 1
    exponent = max(exponent, 1 - bias)
    spacing = F(2) ** (exponent - m_bits)
    rounded = round(size / spacing) * spacing
    sign = -1 if value < 0 else 1
    if rounded > LARGEST[name]:
        if special == "ieee":
            return "inf" if sign > 0 else "-inf"
        rounded = LARGEST[name]
    return sign * rounded


def encode(value, name, negative=False):
    """The code of a value that the format holds. `negative` decides the sign of zero."""
    e_bits, m_bits, bias, special = FORMATS[name]
    sign_bit = 1 << (e_bits + m_bits)
    top = ((1 << e_bits) - 1) << m_bits
    if value in ("inf", "-inf"):
        return top | (sign_bit if value == "-inf" else 0)
    sign = sign_bit if value < 0 or (value == 0 and negative) else 0
    size = abs(value)
    if size == 0:
        return sign
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    if F(2) ** exponent > size:
        exponent -= 1
    exponent = max(exponent, 1 - bias)
    units = size / F(2) ** (exponent - m_bits)
    assert units.denominator == 1
    return sign | (((exponent + bias - 1) << m_bits) + int(units))


def f32(value):
    return rne(F(value), "f32")


def bits(value):
    """f32 bits of a number that f32 holds."""
    if value == "nan":
        return "7fc00000"
    return "%08x" % encode(value, "f32")


# ---- files ----
def header(recipe, rounding):
    return "# tests/golden/make_golden.py | %s | %s\n" % (recipe, rounding)


def decode_file(name):
    count = 256 if name in ("e4m3", "e5m2", "e8m0") else (16 if name == "e2m1" else 64)
    text = header("every code of %s: code (hex), f32 bits, exact value" % name,
                  "none: f32 is exact")
    for code in range(count):
        value = decode(name, code)
        text += "%02x %s %s\n" % (code, bits(value), value)
    return text


def rounding_file(name):
    """f32 numbers and their nearest code: halfway cases, their f32 neighbours, overflow."""
    text = header("f32 to %s: f32 bits, code (hex)" % name, "to nearest, ties to even")
    _, m_bits, bias, _ = FORMATS[name]
    inputs = []
    for base in (0, 1, 2, 3, 4, 5):
        for exponent in (1 - bias, 2 - bias, -1, 0, 1, 5, bias - 1, bias):
            spacing = F(2) ** (exponent - m_bits)
            low = F(2) ** exponent + base * spacing
            for value in (low, low + spacing / 2, low + spacing / 4):
                code = encode(f32(value), "f32")
                inputs += [code - 1, code, code + 1]
    smallest = F(2) ** (1 - bias - m_bits)
    for value in (smallest, smallest / 2, 3 * smallest / 2, 5 * smallest / 2, LARGEST[name]):
        if encode(f32(value), "f32") > 0:
            code = encode(f32(value), "f32")
            inputs += [code - 1, code, code + 1]
    spacing = F(2) ** (bias - m_bits)
    overflow = encode(f32(LARGEST[name] + spacing / 2), "f32")
    inputs += [overflow - 1, overflow, overflow + 1, encode(LARGEST["f32"], "f32"), 0]
    for code in sorted(set(inputs)):
        value = decode("f32", code)
        if not isinstance(value, F):
            continue
        rounded = encode(rne(value, name), name)
        text += "%08x %04x\n" % (code, rounded)
        negative = rounded | (1 << (len_bits(name) - 1))
        text += "%08x %04x\n" % (code | 0x80000000, negative)
    return text


def len_bits(name):
    return 1 + FORMATS[name][0] + FORMATS[name][1]


def encode_file(name, extra):
    """Every number of the format, every halfway point, and the f32 neighbours of those."""
    text = header("f32 to %s, saturating: f32 bits, code (hex)" % name, "to nearest, ties to even")
    half = 1 << (len_bits(name) - 1)
    values = [decode(name, c) for c in range(half)]
    values = [v for v in values if isinstance(v, F)]
    points = values + [(a + b) / 2 for a, b in zip(values, values[1:])] + [F(v) for v in extra]
    codes = set()
    for value in points:
        code = encode(f32(value), "f32")
        codes |= {code, code + 1, max(code - 1, 0)}
    for code in sorted(codes):
        rounded = encode(rne(decode("f32", code), name), name)
        text += "%08x %02x\n%08x %02x\n" % (code, rounded, code | 0x80000000, rounded | half)
    return text


def power_of_two_at_least(bound):
    e = -127
    while F(2) ** e < bound:
        e += 1
    return F(2) ** e


def quantize(scheme, x, t):
    """The values that the codes of one group stand for, by the table of contract.md section 2."""
    absmax = max(abs(v) for v in x)
    dtype, scale = scheme.split(":")
    limit = {"int8": 127, "e4m3": 448, "e2m1": 6}[dtype]
    if scale == "f32":
        s = f32(absmax / limit) if absmax else F(1)
    elif scale == "e8m0":
        s = power_of_two_at_least(absmax / limit) if absmax else F(1)
    elif scale == "static":
        s = t
    else:  # e4m3: nvfp4
        s = f32(rne(f32(absmax / f32(6 * t)), "e4m3") * t)
        if s == 0:
            return [F(0)] * len(x)
    r = f32(1 / s)
    result = []
    for v in x:
        scaled = f32(v * r)
        code = F(round(scaled)) if dtype == "int8" else rne(scaled, dtype)
        result.append(max(-limit, min(limit, code)) * s)
    return result


def quant_file():
    text = header(
        "quantization of one group: scheme, f32 bits of input_scale, f32 bits of x / of code*s",
        "r = 1/s once to f32, x*r to f32, code to nearest even, code*s to f32")
    groups = [
        ["100.4", "0.3", "-0.39", "0.4", "50.2", "-100.4", "0", "1"],
        ["127", "0.5", "1.5", "2.5", "-0.5", "-1.5", "-2.5", "126.5"],
        ["448", "17", "19", "0.3", "300", "304", "447.9", "-448"],
        ["6", "0.25", "0.75", "1.25", "1.75", "2.5", "3.5", "5"],
        ["0", "0", "0", "0", "0", "0", "0", "0"],
        ["0.001", "-0.0007", "0.0003", "0.00001", "0", "0.0009", "-0.001", "0.0005"],
        ["1000000", "-3", "70000", "0.1", "999999", "-500000", "20", "7"],
        ["1", "2", "3", "4", "5", "6", "7", "-8"],
        ["7", "0.5", "-0.5", "3", "6.9", "-7", "1", "2"],
        # x * r and x / s round to different codes: the first in int8, the second in e4m3
        ["62.63800048828125", "34.27827453613281", "-34.27827453613281", "0", "1", "2", "3", "4"],
        ["95.4540023803711", "32.38617706298828", "-32.38617706298828", "0", "1", "2", "3", "4"],
    ]
    schemes = [("int8:f32", 0), ("int8:e8m0", 0), ("int8:static", F(1, 8)), ("e4m3:f32", 0),
               ("e4m3:e8m0", 0), ("e4m3:static", 1), ("e2m1:e8m0", 0), ("e2m1:e4m3", F(1, 448)),
               ("e2m1:e4m3", F(3, 4))]
    for scheme, t in schemes:
        t = f32(F(t))
        for group in groups:
            x = [f32(F(v)) for v in group]
            values = [f32(v) for v in quantize(scheme, x, t)]
            text += "%s %s %s / %s\n" % (scheme, bits(t), " ".join(map(bits, x)),
                                         " ".join(map(bits, values)))
    return text


class Exact:
    """Arithmetic that must not round: each result has to be a number of f32."""

    @staticmethod
    def of(value):
        assert f32(value) == value, value
        return value


def layer_file():
    """Two experts, int4 with zeros and short last group, then e2m1 with e8m0 scales."""
    E, H, I, T, TOPK = 2, 5, 3, 4, 2
    text = header(
        "moe e2 top2 h5 i3, w13 int4 group 3 bf16 scale + zero + bias, w2 e2m1 group 2 e8m0",
        "none: every intermediate result is a number of f32, checked")
    x = [[F(v, 2) for v in row] for row in
         ([1, 2, -3, 4, 0], [0, -1, 5, 2, 3], [7, 0, 0, -2, 1], [-4, 3, 2, 1, -1])]
    ids = [[0, 1], [1, 1], [-1, 0], [-1, -1]]
    weights = [[F(1, 2), F(1, 4)], [F(3, 4), F(-1, 2)], [F(5), F(1, 8)], [F(1), F(1)]]
    for name, gated in (("relu2", True), ("relu2_no_mul", False)):
        GU = 2 * I if gated else I
        lines = ["layer %s" % name, "x " + " ".join(str(float(v)) for r in x for v in r),
                 "ids " + " ".join(str(v) for r in ids for v in r),
                 "weights " + " ".join(str(float(v)) for r in weights for v in r)]
        experts = []
        for e in range(E):
            codes = [[5 + (7 * n + 5 * k + 3 * e + n * k) % 7 for k in range(H)] for n in range(GU)]
            scale = [[F((n + g + e) % 3 + 1, 4) for g in range(2)] for n in range(GU)]
            zero = [[6 + (3 * n + 2 * g + e) % 4 for g in range(2)] for n in range(GU)]
            bias = [F((n + 2 * e) % 5 - 2, 2) for n in range(GU)]
            codes2 = [[(5 * n + 3 * k + e) % 16 for k in range(I)] for n in range(H)]
            scale2 = [[126 + (n + g + e) % 3 for g in range(2)] for n in range(H)]
            flat = lambda rows: " ".join(str(v) for row in rows for v in row)
            lines += ["w13 " + flat(codes),
                      "w13.scale " + " ".join(str(float(v)) for row in scale for v in row),
                      "w13.zero " + flat(zero), "w13.bias " + " ".join(str(float(v)) for v in bias),
                      "w2 " + flat(codes2), "w2.scale " + flat(scale2)]
            experts.append((codes, scale, zero, bias, codes2, scale2))
        y = []
        for t in range(T):
            row = [F(0)] * H
            for slot in range(TOPK):
                if ids[t][slot] < 0:
                    continue
                codes, scale, zero, bias, codes2, scale2 = experts[ids[t][slot]]
                h = [Exact.of(sum(x[t][k] * (codes[n][k] - zero[n][k // 3]) * scale[n][k // 3]
                                  for k in range(H)) + bias[n]) for n in range(GU)]
                a = [Exact.of(Exact.of(max(h[i], F(0)) ** 2) * (h[I + i] if gated else 1))
                     for i in range(I)]
                for n in range(H):
                    y_e = Exact.of(sum(a[k] * decode("e2m1", codes2[n][k]) *
                                       F(2) ** (scale2[n][k // 2] - 127) for k in range(I)))
                    row[n] = Exact.of(row[n] + Exact.of(weights[t][slot] * y_e))
            y += row
        lines.append("y " + " ".join(bits(v) for v in y))
        text += "\n".join(lines) + "\n"
    return text


def files():
    result = {"decode_%s.txt" % n: decode_file(n)
              for n in ("e4m3", "e5m2", "e8m0", "e3m2", "e2m3", "e2m1")}
    result["round_f16.txt"] = rounding_file("f16")
    result["round_bf16.txt"] = rounding_file("bf16")
    d1 = ["0.3", "17", "19", "300", "304", "447.9", "464", "480", "1000000", F(1, 512), F(1, 1024),
          F(3, 1024)]
    result["encode_e4m3.txt"] = encode_file("e4m3", d1)
    result["encode_e2m1.txt"] = encode_file("e2m1", ["6.5", "7", "1000000"])
    result["quant_groups.txt"] = quant_file()
    result["layer_two_experts.txt"] = layer_file()
    return result


def main():
    check = "--check" in sys.argv[1:]
    bad = []
    for name, text in sorted(files().items()):
        path = os.path.join(HERE, name)
        assert len(text) <= 100000, name
        if check:
            if not os.path.exists(path) or open(path).read() != text:
                bad.append(name)
        else:
            open(path, "w").write(text)
    for name in bad:
        print("differs: " + name)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
