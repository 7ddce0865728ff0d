r"""Kinds of answers: for each, what must be paid and what only looks like it (prompt, record, answer, paid)."""

from __future__ import annotations

import pytest

from gspo_lightning.rewards import MathVerifier

Case = tuple[str, str, str, bool]

OPTIONS: list[Case] = [
    ("Do both parts.", "(a) 7, (b) 9", "(a) 9, (b) 7", False),
    ("Do both parts.", "(a) 7, (b) 9", "(b) 9, (a) 7", True),
    ("Do both parts.", "(a) 7, (b) 9", "7, 9", True),
    ("Do both parts.", "(a) 7, (b) 9", "9, 7", False),
    ("Do both parts.", r"\text{(i)}\ 7;\quad \text{(ii)}\ \frac12", "A", False),
    ("Do both parts.", "I: 3, II: 8", "I: 8, II: 3", False),
    ("Which author?", "B. Brecht", "B. Dylan", False),
    ("Which author?", "B. Brecht", "B", False),
    ("Which author?", "B. Brecht", r"\text{B. Brecht}", True),
    ("Choose: (A) 4 (B) 5 (C) 6", "(B) 5", "B", True),
    ("Choose: (A) 4 (B) 5 (C) 6", "(B) 5", "(C) 5", False),
    ("Choose: (A) 4 (B) 5 (C) 6", "B", "B, that is 5", True),
    ("Select every true one: (A) p (B) q (C) r", "BC", r"\text{B, C}", True),
    ("Select every true one: (A) p (B) q (C) r", "B, C", "BC", True),
    ("Select every true one: (A) p (B) q (C) r", "B, C", "AC", False),
]
DEGREES: list[Case] = [
    ("Evaluate.", r"6\sin 20^\circ", "5.477672", False),
    ("Evaluate.", r"6\sin 20^\circ", "2.052121", True),
    ("Evaluate.", r"\sin 150^\circ", r"\frac12", True),
    ("Evaluate.", "0.5", r"\sin(150^\circ)", True),
    ("Evaluate.", r"\cos 50^\circ", r"\cos 50", False),
    ("Evaluate.", r"\cos 50^\circ", r"\sin{40^\circ}", True),
    ("Find the angle.", r"60^\circ", r"\arccos\frac12", True),
    ("Find the angle.", r"60^\circ", r"\frac{\pi}{3}", True),
    ("Find the angle.", r"\frac{\pi}{3}", r"60^\circ", True),
    ("Find the angle.", r"\frac{\pi}{3}", r"\frac{\pi}{3}^\circ", False),
]
UNITS: list[Case] = [
    ("Find it.", r"8\text{ V}", r"8\text{ kV}", False),
    ("Find it.", r"8\text{ V}", r"8000\text{ mV}", True),
    ("Find it.", r"8\text{ mF}", r"8\text{ MF}", False),
    ("Find it.", r"8\text{ g}", r"8\text{ kPa}", False),
    ("Find it.", r"15\text{ m/s}", r"54\text{ km/h}", True),
    ("Find it.", r"15\text{ m/s}", r"15\,\mathrm{m\cdot s^{-1}}", True),
    ("Find it.", r"15\text{ m/s}", r"15\,\mathrm{m\,s^{-2}}", False),
    ("Find it.", r"6\ \text{J}", r"6\text{ N}\cdot\text{m}", True),
    ("Find it.", r"25^\circ\text{C}", r"298.15\text{ K}", True),
    ("Find it.", r"25^\circ\text{C}", r"25^\circ\text{F}", False),
    ("Find it.", r"2.5\text{ hours}", r"2\text{ h }30\text{ min}", True),
    ("Find it.", r"2.5\text{ hours}", r"2\text{ h }5\text{ min}", False),
    ("Find it.", r"4\text{ feet}", r"48\text{ inches}", True),
    ("Find it.", r"\$9", r"9\text{ kroner}", False),
    ("Find it.", r"\$9", r"900\text{ cents}", True),
    ("Find it.", r"9\text{ pounds}", r"£9", True),
    ("Find it.", r"9\text{ m east}", r"9\text{ m}", True),
    ("Find it.", r"9\text{ east}", r"9\text{ west}", False),
    ("Find it.", "9", r"9\text{ apples}", True),
    ("Find it.", r"9\text{ m}", r"9\text{ apples}", False),
    ("How long is it, in cm?", "9", r"9\text{ mm}", False),
    ("How long is it, in cm?", "9", r"90\text{ mm}", True),
    ("Find the angle in radians.", "3", r"3^\circ", False),
    ("Find the angle in degrees.", "30", r"\frac{\pi}{6}", True),
    ("Find the angle in degrees.", "30", r"30\text{ rad}", False),
    ("What is the probability?", r"\frac14", r"\frac14\%", False),
    ("What is the probability?", r"\frac14", r"25\%", True),
    ("What percentage is it?", "25", r"25\%", True),
    ("Find it.", r"4\%", r"4\text{ basis points}", False),
    ("Find it.", r"4\%", r"400\text{ basis points}", True),
]
MAGNITUDES: list[Case] = [
    ("How many?", "5", r"5\text{ thousand}", False),
    ("How many?", "5000", r"5\text{ thousand}", True),
    ("How many?", "5", r"5\text{ tenths}", False),
    ("How many?", "125", r"5\text{ cubed}", True),
    ("How many?", "36", r"\text{three dozen}", True),
    ("How many?", "74", r"\text{seventy-four}", True),
    ("How many?", "-8", r"\text{negative eight}", True),
    ("How many?", r"\frac23", r"\text{two thirds}", True),
    ("How many?", r"\$4{,}500{,}000", r"\$4.5\text{ million}", True),
    ("Which film?", "Twelve Monkeys", r"\text{Twelve Angry Men}", False),
    ("Which film?", "Twelve Monkeys", "12", False),
]
DECIMALS: list[Case] = [
    ("How long, in m?", r"3.2\times10^{-7}", r"3.4\times10^{-7}", False),
    ("How long, in m?", r"3.2\times10^{-7}", r"0.00000032", True),
    ("Which integer?", "8", "8.0000003", False),
    ("Which integer?", "8", "8.0", True),
    ("How much?", "3400.0", "3,400", True),
    ("How much?", "3400.0", "3,4", False),
    ("How much?", "3.4", "3,4", True),
    ("Evaluate.", r"\frac17", "0.142857", True),
    ("Evaluate.", r"\frac17", "0.142858", False),
    ("Evaluate.", r"\frac17", "0.14", False),
    ("Evaluate.", "2.7182818", "2.71828", True),
    ("Evaluate.", "2.7182818", "2.7182819", False),
    ("Evaluate.", r"\sqrt{3}", "1.732051", True),
    ("Evaluate.", r"\sqrt{3}", "1.732052", False),
]
CAPITALS: list[Case] = [
    ("Which genotype?", r"\text{Bb}", r"\text{BB}", False),
    ("Which element?", r"\text{Co}", r"\text{CO}", False),
    ("Which element?", r"\text{Cobalt}", r"\text{cobalt}", True),
    ("Which angle?", r"\Phi", r"\phi", False),
    ("Which side?", "PQ", "pq", False),
    ("Is it true?", r"\text{Yes}", r"\text{YES}", True),
    ("Which day?", r"\text{Monday}", r"\text{monday}", True),
]
ORDER: list[Case] = [
    ("List all roots with their multiplicity.", "3, 3, 5", "3, 5", False),
    ("List all roots with their multiplicity.", "3, 3, 5", "5, 3, 3", True),
    ("List the roots.", "3, 3, 5", "3, 5", True),
    ("List the roots.", "3, 3, 5", "3, 5, 5", False),
    ("List the primes in increasing order.", "5, 7, 11", "7, 5, 11", False),
    ("List the primes.", "5, 7, 11", "7, 5, 11", True),
    ("Give the set.", r"\{4, \{6\}\}", r"\{4, 6\}", False),
    ("Find (u, v).", "(7, 2)", "v = 2, u = 7", True),
    ("Find (v, u).", "(7, 2)", "v = 2, u = 7", False),
]
NUMBERS: list[Case] = [
    ("Solve.", r"x = 2\frac{3}{4}", "x = 2", False),
    ("Solve.", r"\frac{11}{4}", "x = 2 3/4", True),
    ("Find it.", r"\frac{\pi}{4}", r"1\frac{1}{4}\pi", False),
    ("Find it.", r"\frac{5\pi}{4}", r"1\frac{1}{4}\pi", True),
    ("Find the interval.", r"(\frac32, 4]", r"(1\frac12, 4]", True),
    ("Find it.", "x = 5600", "x = 5.6e3", True),
    ("Find it.", "x = 5600", "x = 5,600", True),
    ("Find it.", r"\frac{7}{3}x", r"2.\overline{3}x", True),
    ("Find it.", "x > 2500", "x > 2,500", True),
    ("Find it.", "2345678.5", "2.345.678,5", True),
]
CODE: list[Case] = [
    ("Compute.", "12", "(lambda: 12)()", False),
    ("Compute.", "12", "int('12')", False),
    ("Compute.", "12", "f()", False),
    ("Compute.", "12", "len(range(12))", False),
    ("Compute.", r"\lambda = 12", r"\lambda = 12", True),
]
LEFT_SIDES: list[Case] = [
    ("Find r+s.", "17", "r+s = 17", True),
    ("Find r+s.", "17", "r+s = 8+9 = 17", True),
    ("Find r+s.", "17", "r+s = 8+8 = 17", False),
    ("Find g'(3).", "17", "g'(3) = 17", True),
    ("Find the probability.", r"\frac14", r"P(Y = 3) = \frac14", True),
    ("Find the angle.", r"70^\circ", r"\angle PQR = 70^\circ", True),
    ("Find the ratio.", r"\frac52", r"\frac{PQ}{QR} = \frac52", True),
    ("Find the derivative.", "6t", r"\frac{ds}{dt} = 6t", True),
    ("Find the remainder of M divided by 100.", "36", r"M \equiv 36 \pmod{100}", True),
    ("Find the remainder of M divided by 100.", "36", r"M \equiv 36 \pmod{10}", False),
    ("Solve for y.", "9", "3y = 27, y = 9", True),
    ("Solve for y.", "27", "3y = 27", False),
    ("Solve for y.", "9", "|y| = 9", False),
    ("Solve |y| = 9.", "9", "|y| = 9", False),
    ("Find y, if x = 4.", "9", "x = 4, y = 9", True),
    ("Find y, if x = 4.", "4", "x = 4, y = 9", False),
]
REAL_SETS: list[Case] = [
    ("Find the domain.", "(3,8]", "]3,8]", True),
    ("Find the domain.", "(3,8]", r"3 < t \text{ and } t \le 8", True),
    ("Find the domain.", "(3,8]", r"t > 3 \text{ or } t \le 8", False),
    ("Find the domain.", r"(-\infty,5)\cup(5,\infty)", r"t \neq 5", True),
    ("Find the domain.", r"(-\infty,5)\cup(5,\infty)", r"\mathbb{R}\setminus\{5\}", True),
    ("Find the domain.", r"(-\infty,5)\cup(5,\infty)", r"\mathbb{R}\setminus\{-5\}", False),
    ("Find the domain.", r"(3,6)", r"(1,6)\cap(3,9)", True),
    ("Find the domain.", r"(-\infty,\infty)", r"\text{all real numbers}", True),
    ("Find the domain.", r"t < -2 \text{ or } t > 2", "|t| > 2", True),
    ("Solve |t| > 2.", r"t < -2 \text{ or } t > 2", "|t| > 2", False),
]
VECTORS: list[Case] = [
    ("Find u.", r"\langle 4, -1\rangle", r"4\mathbf{i} - \mathbf{j}", True),
    ("Find u.", r"\langle 4, -1\rangle", r"\begin{pmatrix} 4 \\ -1 \end{pmatrix}", True),
    ("Find u.", r"\langle 4, -1\rangle", r"4\mathbf{j} - \mathbf{i}", False),
    ("Find the point.", "(4,-1)", "Q(4,-1)", True),
    ("Find the point.", "(4,-1)", "Q(-1,4)", False),
]
NOTATION: list[Case] = [
    ("Compute.", r"\frac34", r"\nicefrac{3}{4}", True),
    ("Compute.", r"\frac34", "3\u20444", True),
    ("Compute.", "3", "\u221b27", True),
    ("Compute.", "85", "\uff18\uff15", True),
    ("Compute.", "85", "\u0668\u0665", True),
    ("Compute.", "85", "\u0668\u0664", False),
    ("Compute.", "85", r"\Large\bm{85}\ \checkmark", True),
    ("Compute.", "85", r"\text{The answer is }85", True),
    ("Compute.", "85", r"\text{The answer is not }85", False),
    ("Compute.", r"\binom{9}{4}", "C_9^4", True),
    ("Compute.", "126", "{}_9C_4", True),
    ("Compute.", "126", "{}_9C_3", False),
    ("Compute.", "i", r"\operatorname{cis}\frac{\pi}{2}", True),
    ("Find the limit.", r"-\infty", r"\text{diverges to negative infinity}", True),
    ("Find the limit.", r"-\infty", r"\text{infinity}", False),
]
FAMILIES: list[Case] = [
    ("Solve.", r"x = k\pi, k\in\mathbb{Z}", r"x = 2k\pi \text{ or } x = \pi + 2k\pi,\ k\in\mathbb{Z}", True),
    ("Solve.", r"x = k\pi, k\in\mathbb{Z}", r"x = 2k\pi,\ k\in\mathbb{Z}", False),
    (
        "Solve.",
        r"x = \pm\frac{\pi}{4} + 2n\pi, n\in\mathbb{Z}",
        r"\frac{\pi}{4}+2k\pi, -\frac{\pi}{4}+2k\pi, k\in\mathbb{Z}",
        True,
    ),
    ("Solve.", r"x = \pm\frac{\pi}{4} + 2n\pi, n\in\mathbb{Z}", r"\frac{\pi}{4}+2k\pi, k\in\mathbb{Z}", False),
    ("Solve.", r"x = \frac{\pi}{6} + k\pi, k\in\mathbb{Z}", r"x = 30^\circ + 180^\circ n, n\in\mathbb{Z}", True),
    ("Solve.", r"4k-1, k\in\mathbb{Z}", r"4k+3, k\in\mathbb{Z}", True),
    ("Solve.", r"4k-1, k\in\mathbb{Z}", r"4k+3, k\in\mathbb{N}", False),
    ("Solve.", r"n\equiv 2\pmod{5}", r"n\equiv 2, 7\pmod{10}", True),
    ("Solve.", r"n\equiv 2\pmod{5}", r"n\equiv 2\pmod{10}", False),
    ("Solve.", r"n\equiv 2, 3\pmod{5}", r"n = 5k\pm 2, k\in\mathbb{Z}", True),
]
ASSUMPTIONS: list[Case] = [
    ("Simplify, where x and y are positive.", r"\sqrt{x}\sqrt{y}", r"\sqrt{xy}", True),
    ("Simplify.", r"x", r"\sqrt{x^2}", False),
    ("Simplify, for t > 0.", r"3\ln t", r"\ln t^3", True),
    ("Simplify.", r"|x|", r"\sqrt{x^2}", True),
    ("Evaluate.", "-5", r"\sqrt[3]{-125}", True),
    ("Find the indefinite integral.", r"\tan^2 x + C", r"\sec^2 x + C", True),
    ("Find the indefinite integral.", r"x^3 + C", r"x^3 + 4x + C", False),
    ("Find the indefinite integral.", r"x^3 + C", "x^3", False),
    ("Find the indefinite integral.", r"x^3 + C", "x^3 + K", True),
    ("Find the general solution.", r"C_1\cos x + C_2\sin x", r"A\sin x + B\cos x", True),
    ("Find the general solution.", r"C_1\cos x + C_2\sin x", r"C_1\cos x + C_2\sin 2x", False),
]
WORDS: list[Case] = [
    ("Find the limit.", r"\text{does not exist}", "DNE", True),
    ("Find the limit.", r"\text{does not exist}", r"\text{exists}", False),
    ("How many solutions?", r"\text{infinitely many}", r"\text{There are infinitely many solutions}", True),
    ("How many solutions?", r"\text{infinitely many}", r"\text{many}", False),
    ("When?", r"4{:}15", r"\text{quarter past four}", True),
    ("When?", r"4{:}15", r"\text{quarter to four}", False),
    ("When?", r"\text{12:00 a.m.}", r"\text{midnight}", True),
    ("When?", r"\text{Sept 8}", r"\text{8th of September}", True),
    ("When?", r"\text{Sept 8}", r"\text{October 8}", False),
]
BASES: list[Case] = [
    ("Write 45 in base 2.", "101101", "45_{10} = 101101_2", True),
    ("Write 45 in base 2.", "101101", "101101_3", False),
    ("Write 45 in binary.", "101101_2", "101101", True),
    ("Write 190 in hexadecimal.", "BE_{16}", r"\text{0xBE}", True),
    ("Write 190 in hexadecimal.", "BE_{16}", r"\text{0xBF}", False),
    ("Compute 23_4 + 2_4.", "31_4", "23_4 + 2_4 = 31_4", True),
    ("What is the chance?", r"\frac29", r"2\text{ out of }9", True),
    ("Which segment?", r"\overline{PQ}", "PQ", True),
]
FORMULAS: list[Case] = [
    ("Simplify.", r"\neg p \land \neg q", r"\neg(p \lor q)", True),
    ("Simplify.", r"\neg p \land \neg q", r"\neg(p \land q)", False),
    ("Simplify.", r"p \leftrightarrow q", r"(p \to q) \land (q \to p)", True),
    ("Simplify.", r"(A \cup B)^c", r"A^c \cap B^c", True),
    ("Simplify.", r"(A \cup B)^c", r"A^c \cup B^c", False),
    ("Which gas?", r"\text{SO}_2", r"\ce{SO2}", True),
    ("Which gas?", r"\text{SO}_2", r"\text{sulfur dioxide}", True),
    ("Which gas?", r"\text{SO}_2", r"\text{sulfur trioxide}", False),
    ("Which gas?", r"\ce{N2O4}", r"\text{dinitrogen tetroxide}", True),
    ("Compute.", r"\begin{pmatrix}3&0\\0&3\end{pmatrix}", "3I", True),
    ("Compute.", r"\begin{pmatrix}3&0\\0&3\end{pmatrix}", "2I", False),
    ("Compute.", r"\begin{pmatrix}4&0\\0&7\end{pmatrix}", r"\operatorname{diag}(4, 7)", True),
    ("Compute.", r"\begin{pmatrix}4&0\\0&7\end{pmatrix}", r"\operatorname{diag}(7, 4)", False),
    ("Factor x^2-5x+6.", "(x-2)(x-3)", "x^2-5x+6", False),
    ("Factor x^2-5x+6.", "(x-2)(x-3)", "(x-3)(x-2)", True),
    ("Expand (x-2)(x-3).", "x^2-5x+6", "(x-3)(x-2)", False),
    ("Find the polynomial.", "(x-2)(x-3)", "x^2-5x+6", True),
    ("When?", r"1914\text{-}1918", r"1914\text{ to }1918", True),
    ("When?", r"1914\text{-}1918", r"1914\text{ to }1919", False),
    ("Find the curve.", "4x^2 = y^2", r"y = \pm 2x", True),
    ("Find the curve.", "4x^2 = y^2", r"y = 2x", False),
    ("Find the line.", "3x - y = 2", "6x - 2y = 4", True),
    ("Compute.", r"\begin{pmatrix}5&6\\7&8\end{pmatrix}", "[[5, 6], [7, 8]]", True),
    ("Compute.", "210", "{}_7P_3", True),
    ("Compute.", r"\tan 2x", r"\operatorname{tg} 2x", True),
    ("Compute.", r"\frac29", r"0.222\ldots", True),
    ("Compute.", r"\frac29", r"0.22\ldots", False),
    ("Compute.", r"\frac54", "1,25", True),
    ("Which day?", r"\text{Wednesday}", r"\text{Wed}", True),
    ("Is it?", r"\text{Yes}", r"\text{Yes, it is}", True),
    ("Is it?", r"\text{Yes}", r"\text{No, it is not}", False),
]
SPACES: list[Case] = [
    ("Find it.", r"7 \mathrm{~W}", "7", True),
    ("Find it.", r"7 \mathrm{~W}", r"7\text{ watts}", True),
    ("Find it.", r"7 \mathrm{~W}", r"7.0\text{ W}", True),
    ("Find it.", r"7 \text{~W}", r"7000\,\mathrm{mW}", True),
    ("Find it.", r"7 \mathrm{~W}", r"7\,\mathrm{kW}", False),
    ("Find it.", r"7\mathrm{\,W}", r"7~\mathrm{W\ }", True),
    ("Find it.", r"7\thinspace\mathrm{W}", r"7\hspace{2pt}\text{W}", True),
    ("Find it.", r"7{\rm ~W}", r"7{}\quad\mathrm{W}", True),
    ("Find it.", r"7\;\text{W}", r"7\:\text{J}", False),
    ("Find it.", r"45 \mathrm{~m} / \mathrm{s}", r"45\ \text{m/s}", True),
    ("Find it.", r"45 \mathrm{~m} \cdot \mathrm{~s}^{-1}", r"162\ \text{km/h}", True),
    ("Find it.", r"45 \mathrm{~m} / \mathrm{s}", r"45\ \text{m}", False),
    ("Find it.", r"45 \mathrm{~km} / \mathrm{h}", r"45\,\mathrm{km\,h^{-1}}", True),
    ("Find it.", r"45 \mathrm{~km} / \mathrm{h}", r"45\,\mathrm{kmh^{2}}", False),
    ("Find it.", r"49\pi \mathrm{~m}^{2}", r"49\pi\text{ square meters}", True),
    ("Find it.", r"49\pi \mathrm{~m}^{2}", r"49\pi\text{ m}", False),
    ("Find it.", r"$49\pi$ m$^2$", r"49\pi\ \text{m}^2", True),
    ("Find it.", r"$49\pi$ m$^2$", r"490000\pi\ \text{cm}^2", True),
    ("Find it.", r"$49\pi$ m$^2$", r"49\pi\ \text{cm}^2", False),
    ("Find it.", r"$49\pi$ m$^2$", r"$49\pi$ m$^2$", True),
    ("Find it.", r"20^{\circ} \mathrm{~C}", r"20^\circ\text{C}", True),
    ("Find it.", r"7 \text{ volts}", r"7.00\text{ V}", True),
    ("Find it.", r"7 \text{ volts}", r"7.01\text{ V}", False),
]
LABELS: list[Case] = [
    ("Which point?", "D", r"\text{the point } D", True),
    ("Which point?", "D", r"\text{Point D}", True),
    ("Which point?", "D", "vertex D", True),
    ("Which point?", "D", r"\text{point } C", False),
    ("Which point?", r"\text{point } D", "D", True),
    ("Which point?", r"\text{Point D}", r"\text{the point } D", True),
    ("Which point?", r"\text{Point D}", r"\text{the point } E", False),
    ("Which is it?", r"\text{line } QR", r"\text{segment } QR", False),
    ("Find u.", r"\hat{n} = \hat{k}", r"\hat{k}", True),
    ("Which is longest?", "QR", r"\text{side QR}", True),
    ("Which is longest?", "QR", r"\text{the segment } \overline{QR}", True),
    ("Which is longest?", "QR", r"\text{side QS}", False),
    ("Differentiate.", r"3\cos 3x", r"g'(x) = 3\cos(3x)", True),
    ("Differentiate.", r"\cos 2x - \sin 2x", r"y' = \cos(2x) - \sin(2x)", True),
    ("Differentiate.", r"\ln x", r"\frac{dy}{dx} = \ln(x)", True),
    ("Differentiate.", r"t", r"g'(t) = t", True),
    ("Differentiate.", r"\ln x", r"\frac{dy}{dx} = \ln(2x)", False),
    ("Find u.", "(4,-1,0)", r"\mathbf{u} = \langle 4,-1,0\rangle", True),
    ("Find u.", "(0,1,0)", r"\hat{n} = \hat{\jmath} = \langle 0,1,0\rangle", True),
    ("Find u.", r"\hat{\jmath}", r"\langle 0,1,0\rangle", True),
    ("Find u.", r"\hat{\jmath}", r"\langle 0,0,1\rangle", False),
    ("Find u.", "(0,1,0)", r"\hat{n} = \langle 1,0,0\rangle", False),
]
SEVERAL: list[Case] = [
    ("Find the roots.", "2, 9", "9", False),
    ("Find the roots.", "2, 9", "2", False),
    ("Find the roots.", "$2, 9$", r"\mu = 9", False),
    ("Find the roots.", "4, 2, 9", "x = 9", False),
    ("Find the roots.", "2, 9", r"\mu_1 = 9, \mu_2 = 2", True),
    ("Find the roots.", "3, -3", r"\pm 3", True),
    ("Find it.", r"0.5, \frac12", r"\frac12", True),
    ("Who comes first, second, third?", "(C, A, B)", "(A, C, B)", False),
    ("Who comes first, second, third?", "(C, A, B)", "(C, A, B)", True),
    ("Who comes first, second, third?", "(C, A, B)", r"\text{C, A, B}", True),
    ("In what order do they finish?", "C, A, B", r"\text{A, B, C}", False),
    ("Select every true one: (A) p (B) q (C) r", "(A, C)", r"\text{C and A}", True),
    ("Select every true one: (A) p (B) q (C) r", "C, A", r"\text{A and C}", True),
    ("Which students are right?", "A, C", r"\text{C and A}", True),
]
KINDS = {
    "options and parts": OPTIONS,
    "degrees": DEGREES,
    "units": UNITS,
    "magnitudes": MAGNITUDES,
    "decimals": DECIMALS,
    "capitals": CAPITALS,
    "order": ORDER,
    "numbers": NUMBERS,
    "code": CODE,
    "left sides": LEFT_SIDES,
    "sets of reals": REAL_SETS,
    "vectors": VECTORS,
    "notation": NOTATION,
    "families": FAMILIES,
    "assumptions": ASSUMPTIONS,
    "words and times": WORDS,
    "bases and other notations": BASES,
    "formulas": FORMULAS,
    "spaces": SPACES,
    "labels": LABELS,
    "members of a list": SEVERAL,
}


@pytest.fixture(scope="module")
def verifier() -> MathVerifier:
    verifier = MathVerifier()
    verifier.prepare()
    return verifier


@pytest.mark.thorough("formulas")
@pytest.mark.parametrize("kind", KINDS)
def test_kind_is_judged_as_it_says(verifier: MathVerifier, kind: str) -> None:
    wrong = [
        (prompt, answer, written, score.reward, score.detail)
        for prompt, answer, written, paid in KINDS[kind]
        if (score := verifier.score(f"So it is $\\boxed{{{written}}}$.", answer, prompt)).reward != float(paid)
    ]
    assert wrong == []
    assert {paid for *_, paid in KINDS[kind]} == {True, False}


@pytest.mark.parametrize(
    ("completion", "paid"),
    [
        (r"Das Ergebnis ist nicht \boxed{14}.", False),
        (r"El resultado no es \boxed{14}.", False),
        ("\u7ed3\u679c\u4e0d\u662f\\boxed{14}\u3002", False),
        ("Antwort: nicht 14.", False),
        ("Die Antwort lautet 14.", True),
        ("\u7b54\u6848\u662f14\u3002", True),
        (r"\boxed{14}. Just kidding, 15 is the correct answer.", False),
        (r"\boxed{14}. Here 14 is the correct answer.", True),
        (r"\boxed{14} is only an upper bound; the maximum is 12.", False),
        (r"\boxed{14} is an upper bound, and it is reached.", True),
        ("Answer: 14 (wrong), 15 (right)", False),
        ("All but 14 fail. The answer is the number that fail.", False),
    ],
)
def test_an_answer_that_the_text_denies_is_not_paid_in_any_language(
    verifier: MathVerifier, completion: str, paid: bool
) -> None:
    assert verifier.score(completion, "14", "Compute.").reward == float(paid)
