"""Prompt sets: built-in tasks, files and data sets of the hub."""

from gspo_lightning.prompts.curricula import Curriculum
from gspo_lightning.prompts.files import HubPrompts, PromptFile, open_prompts, read_prompts
from gspo_lightning.prompts.mixture import Mixture, MixtureSource
from gspo_lightning.prompts.prompt_set import Completion, Demonstration, PromptSet, Record, map_columns
from gspo_lightning.prompts.tasks.calculation import CalculatorTask
from gspo_lightning.prompts.tasks.chain import ChainTask
from gspo_lightning.prompts.tasks.code import CodeTask
from gspo_lightning.prompts.tasks.guess import GuessTask
from gspo_lightning.prompts.tasks.logic import LogicTask
from gspo_lightning.prompts.tasks.reasoning_gym import ReasoningGym
from gspo_lightning.prompts.tasks.squares import SquaresTask
from gspo_lightning.prompts.tasks.verifiers import VerifiersTasks
from gspo_lightning.prompts.tasks.word_problems import WordProblems

__all__ = [
    "CalculatorTask",
    "ChainTask",
    "CodeTask",
    "Completion",
    "Curriculum",
    "Demonstration",
    "GuessTask",
    "HubPrompts",
    "LogicTask",
    "Mixture",
    "MixtureSource",
    "PromptFile",
    "PromptSet",
    "ReasoningGym",
    "Record",
    "SquaresTask",
    "VerifiersTasks",
    "WordProblems",
    "map_columns",
    "open_prompts",
    "read_prompts",
]
