r"""Units as data: SI symbols with their prefixes, customary units and currencies, and what each is worth.

Symbols are case-sensitive (mW is not MW); names are not, and may be plural. A unit is a tuple of (name, power), sorted;
``scale`` gives its dimension and its size, so that values can be converted within a dimension.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

Unit = tuple[tuple[str, int], ...]
"""Names and powers of a product of units: ``(("h", -1), ("km", 1))``; empty if there is none."""

_PREFIXES = {
    "Y": ("yotta", 24), "Z": ("zetta", 21), "E": ("exa", 18), "P": ("peta", 15), "T": ("tera", 12), "G": ("giga", 9),
    "M": ("mega", 6), "k": ("kilo", 3), "h": ("hecto", 2), "da": ("deca", 1), "d": ("deci", -1), "c": ("centi", -2),
    "m": ("milli", -3), "\u00b5": ("micro", -6), "n": ("nano", -9), "p": ("pico", -12), "f": ("femto", -15),
    "a": ("atto", -18),
}  # fmt: skip
_METRIC = """
m L 1 meter metre|g M 1/1000 gram gramme|s T 1 second|A I 1 ampere amp|K K 1 kelvin|mol N 1 mole|cd J 1 candela|
Hz T-1 1 hertz|N M.L.T-2 1 newton|Pa M.L-1.T-2 1 pascal|J M.L2.T-2 1 joule|W M.L2.T-3 1 watt|C I.T 1 coulomb|
V M.L2.T-3.I-1 1 volt|F M-1.L-2.T4.I2 1 farad|\u03a9 M.L2.T-3.I-2 1 ohm|S M-1.L-2.T3.I2 1 siemens|
Wb M.L2.T-2.I-1 1 weber|T M.T-2.I-1 1 tesla|H M.L2.T-2.I-2 1 henry|lm lum 1 lumen|lx lum.L-2 1 lux|Bq T-1 1 becquerel|
Gy L2.T-2 1 gray|Sv L2.T-2 1 sievert|kat N.T-1 1 katal|L L3 1/1000 liter litre|l L3 1/1000|t M 1000 tonne ton|
eV M.L2.T-2 1602176634/10000000000000000000000000000 electronvolt|bit bit 1|B bit 8 byte|cal M.L2.T-2 4184/1000 calorie|
bar M.L-1.T-2 100000|rad ang 1:1 radian|pc L 30856775814913673 parsec|yr T 31557600
""".replace("\n", "")
"""Units that take prefixes: symbol, dimension, size, names; ``1:1`` is a size in units of 180/pi degrees."""
_OTHERS = """
min T 60 minute mins|h T 3600 hour hr hrs|day T 86400 d|week T 604800 wk|fortnight T 1209600|month T 2629800|
yr T 31557600 year yrs|decade T 315576000|century T 3155760000 centuries|millennium T 31557600000 millennia|
in L 254/10000 inch inches|ft L 3048/10000 foot feet|yd L 9144/10000 yard|mi L 1609344/1000 mile|
nmi L 1852 nauticalmile|fathom L 18288/10000|furlong L 201168/1000|chain L 201168/10000|rod L 50292/10000|
league L 4828032/1000|lightyear L 9460730472580800 ly light-year|au L 149597870700 AU astronomicalunit|
\u00c5 L 1/10000000000 angstrom|micron L 1/1000000|hand L 1016/10000|
lb M 45359237/100000000 lbs pound|oz M 28349523125/1000000000000 ounce|st M 635029318/100000000 stone|
grain M 6479891/100000000000|carat M 2/10000 ct|slug M 14593903/1000000|u M 1/602214076000000000000000000 amu dalton|
gal L3 3785411784/1000000000000 gallon|qt L3 946352946/1000000000000 quart|pt L3 473176473/1000000000000 pint|
cup L3 2365882365/10000000000000|floz L3 295735295625/10000000000000000 fluidounce|
tbsp L3 1478676478125/100000000000000000 tablespoon|tsp L3 492892159375/100000000000000000 teaspoon|cc L3 1/1000000|
barrel L3 158987294928/1000000000000|bushel L3 3523907/100000000|
ha L2 10000 hectare|are L2 100|acre L2 40468564224/10000000|
kn L.T-1 1852/3600 knot|lbf M.L.T-2 44482216152605/10000000000000|dyn M.L.T-2 1/100000 dyne|erg M.L2.T-2 1/10000000|
atm M.L-1.T-2 101325 atmosphere|torr M.L-1.T-2 101325/760 mmHg|psi M.L-1.T-2 6894757293168/1000000000|
hp M.L2.T-3 74569987158227/100000000000 horsepower|BTU M.L2.T-2 105505585262/100000000 btu|Ci T-1 37000000000 curie|
Cal M.L2.T-2 4184|gauss M.T-2.I-1 1/10000|poise M.L-1.T-1 1/10|M N.L-3 1000 molar|
degree ang 1 deg \u00b0|arcmin ang 1/60 arcminute \u2032|arcsec ang 1/3600 arcsecond \u2033|gradian ang 9/10 gon grad|
turn ang 360 revolution rev|celsius K 1 \u00b0C degC|fahrenheit K 5/9 \u00b0F degF|
percent share 1/100 percentage pct %|permille share 1/1000 \u2030|basispoint share 1/10000 bp bps|ppm share 1/1000000|
ppb share 1/1000000000|bit bit 1 bits|KB bit 8000 kilobyte|KiB bit 8192 kibibyte|MiB bit 8388608 mebibyte|
GiB bit 8589934592 gibibyte|dB decibel 1 decibel|pH ph 1|
dollar USD 1 usd USD buck|
cent USD 1/100 \u00a2 penny pennies|nickel USD 5/100|dime USD 10/100|euro EUR 1 eur EUR|
gbp GBP 1 GBP|pence GBP 1/100|yen JPY 1 jpy JPY|yuan CNY 1 cny CNY rmb RMB renminbi|
rupee INR 1 inr INR rs Rs|won KRW 1 krw KRW|
ruble RUB 1 rouble rub RUB|franc CHF 1 chf CHF|peso MXN 1 MXN|real BRL 1 reais BRL|
krone KR 1 krona kroner kronor kr SEK NOK DKK|
cad CAD 1 CAD|aud AUD 1 AUD|nzd NZD 1 NZD|zloty PLN 1 PLN|lira TRY 1|shekel ILS 1 ILS|dirham AED 1 AED|rand ZAR 1 ZAR
""".replace("\n", "")
_COMPOUND = {
    "mph": (("h", -1), ("mi", 1)),
    "kmh": (("h", -1), ("km", 1)),
    "kph": (("h", -1), ("km", 1)),
    "kmph": (("h", -1), ("km", 1)),
    "mps": (("m", 1), ("s", -1)),
    "fps": (("ft", 1), ("s", -1)),
    "rpm": (("min", -1), ("turn", 1)),
    "mpg": (("gal", -1), ("mi", 1)),
}
_WORDS = {
    "light year": "lightyear", "light-year": "lightyear", "nautical mile": "nauticalmile", "basis point": "basispoint",
    "per mille": "permille", "per mil": "permille", "per cent": "percent", "fluid ounce": "fluidounce",
    "fl oz": "floz", "astronomical unit": "astronomicalunit", "square degree": "sqdeg", "pound sterling": "gbp",
    "pounds sterling": "gbp", "us dollar": "dollar", "u.s. dollar": "dollar", "canadian dollar": "cad",
    "australian dollar": "aud", "degrees celsius": "celsius", "degree celsius": "celsius",
    "degrees fahrenheit": "fahrenheit", "degree fahrenheit": "fahrenheit", "minutes of arc": "arcmin",
    "seconds of arc": "arcsec", "arc minute": "arcmin", "arc second": "arcsec", "parts per million": "ppm",
    "swiss franc": "franc", "electron volt": "electronvolt",
}  # fmt: skip
_SPOKEN = re.compile("|".join(re.escape(words) for words in sorted(_WORDS, key=len, reverse=True)), re.IGNORECASE)
_POWERS = {"square": 2, "sq": 2, "cubic": 3, "cu": 3, "squared": 2, "cubed": 3}
_TOKEN = re.compile(
    r"\^?\(?[-+]?\d+\)?|[*/()]|[A-Za-z\u00b5\u03a9\u00b0\u2030%\u00a2\u00c5\u2032\u2033]+(?:-[A-Za-z]+)?|\S"
)
_OFFSETS = {"celsius": Fraction(27315, 100), "fahrenheit": Fraction(45967, 180)}


@dataclass(frozen=True, slots=True)
class Scale:
    """The dimension of a unit, and its size: ``factor * pi**pi`` base units, from the zero at ``offset``."""

    dimension: tuple[tuple[str, int], ...]
    factor: Fraction
    pi: int = 0
    offset: Fraction = Fraction(0)


def _dimension(text: str) -> dict[str, int]:
    pairs = (re.fullmatch(r"([A-Za-z]+)(-?\d+)?", part) for part in text.split("."))
    return {pair[1]: int(pair[2] or 1) for pair in pairs if pair}


def _tables() -> tuple[dict[str, str], dict[str, str], dict[str, Scale]]:
    """Return symbols and names (in lower case) of all units, and the scale of each unit."""
    symbols: dict[str, str] = {}
    names: dict[str, str] = {}
    scales: dict[str, Scale] = {}
    for group, metric in ((_OTHERS, False), (_METRIC, True)):
        for entry in group.split("|"):
            symbol, dimension, size, *others = entry.split()
            factor = Fraction(size.split(":")[0])
            pi = -1 if ":" in size else 0
            dims = tuple(sorted(_dimension(dimension).items()))
            prefixes = [("", "", 0), *((p, *about) for p, about in _PREFIXES.items())] if metric else [("", "", 0)]
            for prefix, spoken, power in prefixes:
                name = prefix + symbol
                if name in symbols and prefix:
                    continue  # min is a minute, not a milli-inch
                symbols[name] = name
                size_here = factor * Fraction(10) ** power * (180 if pi else 1)
                scales.setdefault(name, Scale(dims, size_here, pi, _OFFSETS.get(name, Fraction(0))))
                for other in others:
                    if other.isascii() and other.isalpha() and not other.isupper():
                        names[f"{spoken}{other}".lower()] = name
                    elif not prefix:
                        symbols[other] = name
            if not metric and symbol.isalpha() and len(symbol) > 2:
                names[symbol.lower()] = symbol
    return symbols, names, scales


_SYMBOLS, _NAMES, _SCALES = _tables()
_SYMBOLS |= {"min": "min", "ft": "ft", "cd": "cd", "pt": "pt", "hr": "h", "sec": "s", "\u03bcm": "\u00b5m", "gm": "g"}
_NAMES |= {"sec": "s", "secs": "s", "kilo": "kg", "kilos": "kg", "cc": "cc", "deg": "degree", "feet": "ft"}
_LOOSE = {name.lower(): name for name in ("kg", "mg", "km", "cm", "mm", "ml", "kmh", "lb", "lbs", "oz", "ft", "in")}
"""Symbols that are understood in capitals as well, where these mean nothing else: KG, CM."""


def name_of(word: str) -> str | None:
    """Return the name of a unit that a word spells, or None.

    >>> name_of("mW"), name_of("MW"), name_of("Kilometres"), name_of("apples"), name_of("KG")
    ('mW', 'MW', 'km', None, 'kg')
    """
    if word in _SYMBOLS:
        return _SYMBOLS[word]
    small = word.lower()
    if small in _COMPOUND:
        return small
    for spelled in (small, small.removesuffix("s"), small.removesuffix("es")):
        if len(spelled) > 1 and spelled in _NAMES and (len(spelled) > 2 or word.islower()):
            return _NAMES[spelled]
    loose = _LOOSE.get(small) or (_SYMBOLS.get(small.removesuffix("s")) if len(small) > 2 and word.islower() else None)
    return _SYMBOLS.get(loose, loose) if loose else None


@lru_cache(maxsize=1024)
def unit_of(text: str, *, loosely: bool = False) -> Unit:
    """Parse a product of units, as a formula or in words; empty if it is not one.

    Args:
        text: for example ``kg*m^2/s^2``, ``miles per hour``, ``square cm``.
        loosely: words behind a unit are allowed (``km away``).

    >>> unit_of("kg*m^2/s^2"), unit_of("miles per hour"), unit_of("square cm")
    ((('kg', 1), ('m', 2), ('s', -2)), (('h', -1), ('mi', 1)), (('cm', 2),))
    >>> unit_of("m s^-1"), unit_of("apples"), unit_of("km away", loosely=True)
    ((('m', 1), ('s', -1)), (), (('km', 1),))
    """
    text = _SPOKEN.sub(lambda m: _WORDS[m[0].lower()], text.strip(" ."))
    result: dict[str, int] = {}
    sign = 1
    scale = 1
    last = ""
    tokens = _TOKEN.findall(text.replace(".", "")) if len(text) <= 120 else []
    for token in tokens:
        lower = token.lower()
        if token == "/" or (lower in ("per", "a", "an", "each") and result):
            sign = -1
        elif token in "()*":
            continue  # what follows a slash is below it: J/kg*K
        elif lower in _POWERS and not (lower in ("squared", "cubed") and last in result):
            scale = _POWERS[lower]
        elif lower in _POWERS:
            result[last] = result[last] * _POWERS[lower]
        elif re.fullmatch(r"\^?\(?[-+]?\d+\)?", token):
            if last not in result:  # nothing, or a unit like km/h in one word, to raise
                return ()
            result[last] *= int(token.strip("^()"))
        elif (name := name_of(token)) is not None:
            last = name
            for part, power in _COMPOUND.get(name, ((name, 1),)):
                result[part] = result.get(part, 0) + sign * power * scale
            scale = 1
        elif loosely and result and token.isalpha() and scale == 1:
            break
        else:
            return ()
    return tuple(sorted((name, power) for name, power in result.items() if power))


@lru_cache(maxsize=1024)
def scale(unit: Unit) -> Scale:
    """Return the dimension and the size of a unit.

    >>> scale((("km", 1),)).factor, scale((("h", -1), ("km", 1))).factor
    (Fraction(1000, 1), Fraction(5, 18))
    """
    dimension: dict[str, int] = {}
    factor = Fraction(1)
    pi = 0
    for name, power in unit:
        item = _SCALES[name]
        factor *= item.factor**power
        pi += item.pi * power
        for base, exponent in item.dimension:
            dimension[base] = dimension.get(base, 0) + exponent * power
    dims = tuple(sorted((base, exponent) for base, exponent in dimension.items() if exponent))
    offset = _SCALES[unit[0][0]].offset if len(unit) == 1 and unit[0][1] == 1 else Fraction(0)
    return Scale(dims, factor, pi, offset)
