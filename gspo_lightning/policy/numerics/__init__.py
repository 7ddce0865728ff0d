"""Numerics: a whole policy under autocast, or with the same bits in training and in decoding."""
