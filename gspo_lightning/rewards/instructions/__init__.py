"""Instruction-following rewards that a program can verify: IFEval's 25 kinds."""
